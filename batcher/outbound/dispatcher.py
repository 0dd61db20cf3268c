"""The dispatcher: forms and sends batches whenever credit or items arrive.

1. Choose the replicas with credit, one for each model version. 2. Choose the batch key of the least
served tenant that may close; a key whose version no replica with credit has is passed over.
3. Items with a prefix group or an adapter go to the replica of that, if it is as free. 4. Pop the
items. 5. Spend the credit. 6. Send.
No timer delays a batch before the producer, where bulk lingers for 3 ms.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace

from batcher import metrics
from batcher.outbound.batch_sender import BatchSender
from batcher.outbound.group_placement import place_batch
from batcher.policy.batch_closing import (
    BatchCandidate,
    BatchCloseReason,
    BatchLimits,
    Instant,
    close_reason,
    closes_at_s,
    item_count_cap,
    turn_items,
)
from batcher.policy.compute_model import ComputeModel
from batcher.policy.credits import BestReplicas, CreditLedger, ReplicaCredit
from batcher.queueing.buffered_chunk import BufferedChunk
from batcher.queueing.queue_levels import BatchKeyQueue, PoolQueue
from batcher.queueing.queues import Queues
from core.clock import Clock

DISPATCH_SLICE_S_MAX = 0.005
"""Time after which dispatch yields to the event loop; the current pool is then visited last."""

TIMER_S_MIN = 0.001
"""Shortest timer: rounding must not make a batch that is almost due spin the loop."""


class Dispatcher:
    """Turns buffered chunks into batches; every method runs on the event loop."""

    def __init__(  # noqa: PLR0913  the dependencies of the steps
        self,
        queues: Queues,
        ledger: CreditLedger,
        sender: BatchSender,
        *,
        limits: BatchLimits,
        compute: ComputeModel,
        settle_if_obsolete: Callable[[BufferedChunk], bool],
        clock: Clock,
    ) -> None:
        """`settle_if_obsolete` settles an obsolete chunk and returns whether it did."""
        self._queues, self._ledger, self._sender = queues, ledger, sender
        self._limits, self._compute, self._clock = limits, compute, clock
        self._settle_if_obsolete = settle_if_obsolete
        self._work_available = asyncio.Event()
        self._not_full = asyncio.Event()
        self.dispatched_count = 0

    def wake(self) -> None:
        """Dispatch soon: items, credit or acknowledgements arrived."""
        self._work_available.set()

    async def wait_until_not_full(self) -> None:
        """Return once more records may be read."""
        while self._queues.is_reading_stopped:
            self._not_full.clear()
            await self._not_full.wait()

    async def run(self, on_waiting: Callable[[], None]) -> None:
        """Dispatch until cancelled; `on_waiting` is called when items wait for credit."""
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None
        while True:
            await self._work_available.wait()
            self._work_available.clear()
            if timer is not None:
                timer.cancel()
            next_in_s = self.dispatch()
            timer = (
                None if next_in_s is None else loop.call_later(next_in_s, self._work_available.set)
            )
            if not self._queues.is_reading_stopped:
                self._not_full.set()
            if self._queues.item_count:
                on_waiting()

    def dispatch(self) -> float | None:
        """Send every batch that may close now; return the seconds until the next one may."""
        now = Instant(self._clock.monotonic_s(), self._clock.wall_s())
        next_s = math.inf
        pools = self._queues.pools
        for name, pool in [*pools.items()]:
            while pool.item_count and not self._sender.is_full:
                replicas = self._ledger.best_replicas(name, now_s=now.monotonic_s)
                if replicas is None:
                    break
                due_s = self._dispatch_one(pool, replicas, now)
                if due_s is not None:
                    next_s = min(next_s, due_s)
                    break
                if self._clock.monotonic_s() - now.monotonic_s >= DISPATCH_SLICE_S_MAX:
                    pools[name] = pools.pop(name)
                    return 0.0
        return None if next_s == math.inf else max(TIMER_S_MIN, next_s - now.monotonic_s)

    def _dispatch_one(self, pool: PoolQueue, replicas: BestReplicas, now: Instant) -> float | None:
        """Send one batch, or return the monotonic time at which one may close; infinity: none."""
        due_s = math.inf
        limits: BatchLimits | None = None
        limits_of: ReplicaCredit | None = None
        for queue in pool.by_fairness():
            replica = replicas.of(queue.key.required_model)
            if replica is None:
                continue
            if limits is None or limits_of is not replica:
                limits = replace(self._limits, item_count_max=self._cap(replica))
                limits_of = replica
            candidate = self._candidate(queue, replica)
            reason = close_reason(candidate, limits=limits, idle=replica.idle, now=now)
            if reason is not None:
                item_count_max = min(limits.item_count_max, replica.free)
                self._send(queue, replica, item_count_max, reason, now)
                return None
            due_s = min(due_s, closes_at_s(candidate, limits=limits, now=now))
        return due_s

    def _cap(self, replica: ReplicaCredit) -> int:
        return item_count_cap(
            self._limits,
            items_per_s=replica.capacity.items_per_s,
            concurrency=replica.capacity.concurrency,
        )

    def _candidate(self, queue: BatchKeyQueue, replica: ReplicaCredit) -> BatchCandidate:
        """Return the batch that `queue` could send to `replica` now."""
        part = min(1.0, replica.free / queue.item_count)
        output = queue.output_token_count * part
        return BatchCandidate(
            item_count=min(queue.item_count, replica.free),
            token_count=queue.token_count if queue.item_count <= replica.free else 0,
            since_s=max(queue.since_s, replica.free_since_s),
            deadline_s=queue.deadline_s,
            compute_s=self._compute.batch_s(
                replica.capacity,
                queue.key.endpoint,
                prompt=queue.token_count * part - output,
                output=output,
            ),
        )

    def _send(
        self,
        queue: BatchKeyQueue,
        replica: ReplicaCredit,
        item_count_max: int,
        reason: BatchCloseReason,
        now: Instant,
    ) -> None:
        choice = None
        pool = self._queues.pools[queue.key.pool]
        if pool.grouped_count or queue.key.base_version:
            replica, choice = place_batch(
                self._queues, self._ledger, queue, replica, now_s=now.monotonic_s
            )
            item_count_max = min(self._cap(replica), replica.free)
        popped = self._queues.pop_batch(
            queue,
            item_count_max=item_count_max,
            choice=choice,
            token_count_max=self._limits.token_count_max,
            turn_items_max=turn_items(
                len(pool.counters),
                items_per_s=replica.capacity.items_per_s,
                item_count_max=item_count_max,
            ),
        )
        queue.since_s = now.monotonic_s
        chunks = [chunk for chunk in popped if not self._settle_if_obsolete(chunk)]
        if not chunks:
            return
        count = sum(len(chunk.items) for chunk in chunks)
        self._ledger.spend(replica.capacity.replica_id, count, now_s=now.monotonic_s)
        self._sender.send_batch(replica, queue.key, chunks, now_s=now.monotonic_s)
        self.dispatched_count += count
        for chunk in chunks:
            metrics.WAIT_SECONDS.observe(now.monotonic_s - chunk.ticket.arrived_s)
        metrics.BATCH_ITEMS.observe(count)
        metrics.BATCH_CLOSE.labels(reason.value).inc()
