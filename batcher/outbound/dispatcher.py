"""The dispatcher: whenever credit or items arrive, form batches and send them. No timer on the way
to the producer, where bulk lingers for 3 ms.

1. Pick a replica with credit. 2. Pick the lane of the least served tenant that may close.
3. Take the items. 4. Spend the credit. 5. Send.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from batcher import metrics
from batcher.policy.batch_closing import (
    BatchCandidate,
    BatchCloseReason,
    BatchLimits,
    Instant,
    close_reason,
    closes_at_s,
    item_count_cap,
)
from batcher.policy.credits import CreditLedger, ReplicaCredit
from batcher.queueing.buffered_chunk import BatchKey, BufferedChunk
from batcher.queueing.queue_levels import BatchKeyQueue, PoolQueue
from batcher.queueing.queues import Queues
from core.clock import Clock

DISPATCH_SLICE_S_MAX = 0.005
"""Time after which the event loop gets its turn; the pool that took it is last in the next one."""

TIMER_S_MIN = 0.001
"""Rounding must not let a batch that is almost due spin the loop."""


class BatchSink(Protocol):
    """What the dispatcher needs of the log."""

    @property
    def is_full(self) -> bool:
        """Whether acknowledgements must arrive before more is sent."""
        ...

    def send_batch(
        self,
        replica: ReplicaCredit,
        lane: BatchKey,
        taken: Sequence[BufferedChunk],
        *,
        now_s: float,
    ) -> None:
        """Send a batch; `now_s` is monotonic."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchRules:
    """The numbers that decide; see `BatcherSettings`."""

    limits: BatchLimits
    batch_s_max: float


class Dispatcher:
    """Turns held items into batches; every method runs on the event loop."""

    def __init__(
        self,
        queues: Queues,
        ledger: CreditLedger,
        sender: BatchSink,
        *,
        rules: DispatchRules,
        let_go: Callable[[BufferedChunk], bool],
        clock: Clock,
    ) -> None:
        """`let_go` settles a taken chunk that must not be sent any more, and says so."""
        self._queues, self._ledger, self._sender = queues, ledger, sender
        self._rules, self._let_go, self._clock = rules, let_go, clock
        self._work = asyncio.Event()
        self.room = asyncio.Event()
        self.dispatched_count = 0

    def wake(self) -> None:
        """Items, credit or acknowledgements arrived."""
        self._work.set()

    async def run(self, on_left: Callable[[], None]) -> None:
        """Dispatch until cancelled; `on_left` is called when items are left without credit."""
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None
        while True:
            await self._work.wait()
            self._work.clear()
            if timer is not None:
                timer.cancel()
            again_in_s = self.dispatch()
            timer = None if again_in_s is None else loop.call_later(again_in_s, self._work.set)
            if not self._queues.is_full:
                self.room.set()
            if self._queues.item_count:
                on_left()

    def dispatch(self) -> float | None:
        """Send every batch that may close now; return the seconds until the next one may."""
        now = self._now()
        soonest_s: float | None = None
        pools = self._queues.pools
        for name, pool in [*pools.items()]:
            while pool.item_count and not self._sender.is_full:
                replica = self._ledger.best(name, now_s=now.monotonic_s)
                if replica is None:
                    break
                closes_s = self._dispatch_one(pool, replica, now)
                if closes_s is not None:
                    soonest_s = closes_s if soonest_s is None else min(soonest_s, closes_s)
                    break
                if self._clock.monotonic_s() - now.monotonic_s >= DISPATCH_SLICE_S_MAX:
                    pools[name] = pools.pop(name)
                    return 0.0
        return None if soonest_s is None else max(TIMER_S_MIN, soonest_s - now.monotonic_s)

    def _dispatch_one(self, pool: PoolQueue, replica: ReplicaCredit, now: Instant) -> float | None:
        """Send one batch to `replica`, or return the monotonic time at which one may close."""
        closes_s: float | None = None
        cap = self._item_cap(replica)
        limits = self._rules.limits
        for lane in pool.fair_lanes():
            waiting = BatchCandidate(
                item_count=min(lane.item_count, replica.free),
                token_count=lane.token_count if lane.item_count <= replica.free else 0,
                since_s=max(lane.since_s, replica.free_since_s),
                deadline_s=lane.deadline_s,
            )
            lane_limits = BatchLimits(
                item_count_max=cap,
                token_count_max=limits.token_count_max,
                wait_s_max=limits.wait_s_max,
                slack_s_min=limits.slack_s_min,
            )
            reason = close_reason(waiting, limits=lane_limits, idle=replica.idle, now=now)
            if reason is not None:
                self._send(lane, replica, min(cap, replica.free), reason, now)
                return None
            at_s = closes_at_s(waiting, limits=lane_limits, now=now)
            closes_s = at_s if closes_s is None else min(closes_s, at_s)
        return closes_s

    def _item_cap(self, replica: ReplicaCredit) -> int:
        return item_count_cap(
            self._rules.limits.item_count_max,
            items_per_s=replica.capacity.items_per_s,
            concurrency=replica.capacity.concurrency,
            batch_s_max=self._rules.batch_s_max,
        )

    def _send(
        self,
        lane: BatchKeyQueue,
        replica: ReplicaCredit,
        item_count_max: int,
        reason: BatchCloseReason,
        now: Instant,
    ) -> None:
        taken = self._queues.take(
            lane,
            item_count_max=item_count_max,
            token_count_max=self._rules.limits.token_count_max,
        )
        lane.since_s = now.monotonic_s
        live = [held for held in taken if not self._let_go(held)]
        if not live:
            return
        count = sum(len(held.items) for held in live)
        self._ledger.spend(replica.capacity.replica_id, count, now_s=now.monotonic_s)
        self._sender.send_batch(replica, lane.key, live, now_s=now.monotonic_s)
        self.dispatched_count += count
        for held in live:
            metrics.WAIT_SECONDS.observe(now.monotonic_s - held.ticket.arrived_s)
        metrics.BATCH_ITEMS.observe(count)
        metrics.BATCH_CLOSE.labels(reason.value).inc()

    def _now(self) -> Instant:
        return Instant(self._clock.monotonic_s(), self._clock.wall_s())
