"""A batcher in virtual time: the queues, the credit and the dispatcher of the role."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast
from uuid import UUID

from batcher.faust_app.ordered_acks import AckTicket
from batcher.outbound.batch_sender import BatchSender
from batcher.outbound.dispatcher import Dispatcher
from batcher.periodic import INTERVAL_S, MAINTENANCE_EVERY
from batcher.policy.compute_model import ComputeModel
from batcher.policy.credits import CreditLedger, ReplicaCredit
from batcher.policy.service_exchange import ServiceExchange
from batcher.queueing.buffered_chunk import BatchKey, BufferedChunk
from batcher.queueing.queue_discipline import QueueDiscipline
from batcher.queueing.queue_levels import PoolQueue
from batcher.queueing.queues import Queues
from batcher.queueing.tenant_service import (
    charge_corrections,
    charge_remote_service,
    pool_shares,
    prune_service,
    report_service,
)
from batcher.settings import BatcherSettings
from benchmarks.simulation.events import Events
from benchmarks.simulation.jobs import POOL
from core.urgency import rank
from topics.records.records import (
    Capacity,
    EndpointCompute,
    Item,
    JobRef,
    ReplicaGrants,
    ServiceReport,
    UsageReport,
)

LIMITS = BatcherSettings().batch_limits
ITEMS_MAX = 400_000

Send = Callable[[str, Sequence[BufferedChunk]], None]
"""Called with the batcher's id and the chunks of a batch."""


class _Sender:
    """The sender that the dispatcher needs; nothing is ever full or unavailable."""

    is_full = False

    def __init__(self, batcher_id: str, send: Send) -> None:
        self._batcher_id, self._send = batcher_id, send

    def send_batch(
        self,
        replica: ReplicaCredit,
        key: BatchKey,
        chunks: Sequence[BufferedChunk],
        *,
        now_s: float,
    ) -> None:
        """Send a batch."""
        self._send(self._batcher_id, chunks)


class Batcher:
    """One batcher of bulk items."""

    def __init__(  # noqa: PLR0913  where it sends
        self,
        events: Events,
        batcher_id: str,
        send: Send,
        *,
        publish_demand: Callable[[str, int, float | None], None],
        publish_service: Callable[[ServiceReport], None],
        is_closed: Callable[[UUID], bool],
        discipline: QueueDiscipline | None,
    ) -> None:
        """A `discipline` of None is the fair order."""
        self.batcher_id, self._events = batcher_id, events
        self._publish_demand, self._publish_service = publish_demand, publish_service
        self.compute = ComputeModel()
        self.queues = Queues(
            items_max=ITEMS_MAX,
            bytes_max=1 << 40,
            rank=self._rank if discipline is None else discipline.rank,
            output_weight=self.compute.output_weight,
            next_tenant=PoolQueue.next_tenant if discipline is None else discipline.next_tenant,
        )
        self._ledger = CreditLedger(batcher_id, "bulk", silence_s_max=3.0)
        self._exchange = ServiceExchange(batcher_id, "bulk")
        self._dispatcher = Dispatcher(
            self.queues,
            self._ledger,
            cast(BatchSender, _Sender(batcher_id, send)),
            limits=LIMITS,
            compute=self.compute,
            settle_if_obsolete=lambda chunk: is_closed(chunk.job.job_id),
            clock=events,
        )
        self._rounds = 0
        self._has_demand = False
        self._timer_s = float("inf")
        events.repeat(INTERVAL_S, self._run_periodic)

    def add(self, job: JobRef, items: list[Item]) -> None:
        """Buffer a chunk that was read."""
        now_s = self._events.monotonic_s()
        ticket = AckTicket(("requests.bulk", 0), None, len(items), now_s)
        self.queues.add(BufferedChunk(job, items, ticket), now_s=now_s)
        self._dispatch()
        if self.queues.item_count and not self._has_demand:
            self._publish()

    def apply_grants(self, grants: ReplicaGrants, rate: float, seen: list[EndpointCompute]) -> None:
        """Apply grants, and the rate and the times of tokens, which come with them here."""
        now_s = self._events.monotonic_s()
        capacity = Capacity(
            grants.replica_id, 1, POOL, "bulk", [0], {}, rate, grants.concurrency, compute=seen
        )
        self._ledger.record_grants(grants, now_s=now_s)
        self._ledger.record_capacity(capacity, now_s=now_s)
        self.compute.record_capacity(capacity)
        self._dispatch()

    def apply_service(self, report: ServiceReport) -> None:
        """Charge what another batcher served."""
        now_s = self._events.monotonic_s()
        charge_remote_service(self.queues, self._exchange.apply(report, now_s=now_s))

    def apply_usage(self, report: UsageReport) -> None:
        """Charge what items used beyond their estimates."""
        charge_corrections(self.queues, report, batcher_id=self.batcher_id)

    def _rank(self, job: JobRef) -> int:
        return rank(job.priority, job.deadline_s - self._events.wall_s())

    def _dispatch(self) -> None:
        wait_s = self._dispatcher.dispatch()
        now_s = self._events.monotonic_s()
        if wait_s is not None and not now_s < self._timer_s <= now_s + wait_s:
            self._timer_s = now_s + wait_s
            self._events.call_later(wait_s, partial(self._run_timer, self._timer_s))

    def _run_timer(self, due_s: float) -> None:
        if due_s == self._timer_s:
            self._timer_s = float("inf")
            self._dispatch()

    def _run_periodic(self) -> None:
        self._rounds += 1
        now_s = self._events.monotonic_s()
        is_heartbeat = self._rounds % MAINTENANCE_EVERY == 0
        if self._exchange.has_others(now_s=now_s) or is_heartbeat:
            pools = report_service(self.queues)
            self._publish_service(ServiceReport(self.batcher_id, "bulk", pools))
        if is_heartbeat:
            prune_service(self.queues, now_s=now_s)
            self.queues.update_ranks()
            self._ledger.forget_silent_replicas(now_s=now_s)
        self._publish()
        self._dispatch()

    def _publish(self) -> None:
        waiting = self.queues.waiting().get(POOL, 0)
        shares = pool_shares(self.queues, self._exchange, now_s=self._events.monotonic_s())
        self._has_demand = waiting > 0
        self._publish_demand(self.batcher_id, waiting, shares.get(POOL))
