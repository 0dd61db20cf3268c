"""Periodic maintenance of the queues: drop obsolete items, requeue old records, forget pools."""

from dataclasses import dataclass

from batcher import metrics
from batcher.faust_app.ordered_acks import OrderedAcks
from batcher.outbound.batch_sender import BatchSender
from batcher.policy.credits import CreditLedger
from batcher.policy.requeue_policy import PIN_GAIN, POOL_SEARCH_S, has_other_pool, should_requeue
from batcher.queueing.drop_policy import ObsoleteItems
from batcher.queueing.queues import Queues
from core.clock import Clock

REQUEUES_MAX = 50
"""Chunks requeued in one run: a bound on what one run sends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMaintenance:
    """Visits every buffered chunk; runs on the event loop."""

    queues: Queues
    ledger: CreditLedger
    acks: OrderedAcks
    sender: BatchSender
    obsolete_items: ObsoleteItems
    clock: Clock
    job_class: str
    hold_limit_s: float

    def run_once(self) -> None:
        """Drop obsolete items, update ranks, requeue old records, forget replicas and pools."""
        self.drop_obsolete()
        self.queues.update_ranks()
        self.requeue_old()
        self.ledger.forget_silent_replicas(now_s=self.clock.monotonic_s())
        self.forget_pools()

    def drop_obsolete(self) -> None:
        """Remove obsolete chunks."""
        for chunk in self.queues.snapshot():
            if self.obsolete_items.settle_if_obsolete(chunk):
                self.queues.remove(chunk)

    def requeue_old(self) -> None:
        """Requeue old records that pin an offset or crowd others out, see `requeue_policy`."""
        now_s = self.clock.monotonic_s()
        limit_s = self.hold_limit_s
        old = [c for c in self.queues.snapshot() if now_s - c.ticket.arrived_s >= limit_s]
        if not old:
            return
        pinning = self.acks.pinning(PIN_GAIN[self.job_class])
        was_full = self.queues.is_full  # before the first requeued chunk makes space
        with_credit = {pool for pool in self.ledger.pools if self.ledger.best(pool, now_s=now_s)}
        recent = {p for p in with_credit if now_s - self.queues.last_added_s(p) < POOL_SEARCH_S}
        count = 0
        for chunk in old:
            if count == REQUEUES_MAX or self.sender.is_full:
                return
            # The first chunk also makes space for pools without recent arrivals.
            pools = recent if count else with_credit
            if should_requeue(
                age_s=now_s - chunk.ticket.arrived_s,
                limit_s=limit_s,
                pins=chunk.ticket in pinning,
                crowds=was_full and has_other_pool(pools, chunk.job.pool),
            ):
                count += 1
                self.queues.remove(chunk)
                self.sender.requeue(chunk)
                metrics.REQUEUED_ITEMS.inc(len(chunk.items))

    def forget_pools(self) -> None:
        """Forget pools without waiting items and without replicas."""
        for pool in self.queues.forget_empty_pools(self.ledger.pools):
            metrics.BUFFERED_ITEMS.remove(pool)
