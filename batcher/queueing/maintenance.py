"""What is looked at once a second: jobs that are over, records held too long, forgotten pools."""

from dataclasses import dataclass

from batcher import metrics
from batcher.faust_app.ordered_acks import OrderedAcks
from batcher.outbound.batch_sender import BatchSender
from batcher.policy.credits import CreditLedger
from batcher.policy.requeue_policy import PIN_GAIN, POOL_SEARCH_S, has_other_pool, should_requeue
from batcher.queueing.drop_policy import LettingGo
from batcher.queueing.queues import Queues
from core.clock import Clock

REQUEUES_MAX = 50
"""Chunks handed back in one sweep: a bound on what a sweep sends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMaintenance:
    """Looks at everything that is held; runs on the event loop."""

    queues: Queues
    ledger: CreditLedger
    acks: OrderedAcks
    sender: BatchSender
    letting_go: LettingGo
    clock: Clock
    job_class: str
    hold_limit_s: float

    def drop_over(self) -> None:
        """Remove the items of jobs that are over."""
        for held in self.queues.held():
            if self.letting_go.let_go(held):
                self.queues.remove(held)

    def hand_back_old(self) -> None:
        """Put old records that pin or crowd others back to the tail, see `policy.holding`."""
        now_s = self.clock.monotonic_s()
        limit_s = self.hold_limit_s
        old = [h for h in self.queues.held() if now_s - h.ticket.arrived_s >= limit_s]
        if not old:
            return
        pinning = self.acks.pinning(PIN_GAIN[self.job_class])
        was_full = self.queues.is_full  # the first that goes makes room
        served = {pool for pool in self.ledger.pools if self.ledger.best(pool, now_s=now_s)}
        sought = {pool for pool in served if now_s - self.queues.came_s(pool) < POOL_SEARCH_S}
        count = 0
        for held in old:
            if count == REQUEUES_MAX or self.sender.is_full:
                return
            wanted = sought if count else served  # the first one is for finding what came anew
            if should_requeue(
                age_s=now_s - held.ticket.arrived_s,
                limit_s=limit_s,
                pins=held.ticket in pinning,
                crowds=was_full and has_other_pool(wanted, held.job.pool),
            ):
                count += 1
                self.queues.remove(held)
                self.sender.hand_back(held)
                metrics.REQUEUED_ITEMS.inc(len(held.items))

    def forget_pools(self) -> None:
        """Forget pools that nothing waits for and no replica is of."""
        for pool in self.queues.forget(self.ledger.pools):
            metrics.HELD_ITEMS.remove(pool)
