"""What is looked at once a second: items of closed jobs, and records that are held too long."""

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from batcher import metrics
from batcher.acks import OrderedAcks
from batcher.policy.credits import CreditLedger
from batcher.policy.holding import hand_back
from batcher.queues import Held, Queues
from batcher.sending import Sender
from core.clock import Clock

HAND_BACKS_MAX = 50
"""Chunks handed back in one sweep: a bound on what a sweep sends."""


@dataclass(frozen=True, slots=True)
class ClosedFilter:
    """Lets go of the items of closed jobs: their rows are written without us."""

    acks: OrderedAcks
    is_closed: Callable[[UUID], bool]

    def let_go(self, held: Held) -> bool:
        """Whether the chunk's job is closed; then its items are settled here, unsent."""
        if not self.is_closed(held.job.job_id):
            return False
        metrics.ITEMS_DROPPED.labels("closed").inc(len(held.items))
        self.acks.settle(held.ticket, len(held.items))
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweeper:
    """Looks at everything that is held; runs on the event loop."""

    queues: Queues
    ledger: CreditLedger
    acks: OrderedAcks
    sender: Sender
    closed: ClosedFilter
    clock: Clock
    hold_limit_s: float

    def drop_closed(self) -> None:
        """Remove the items of closed jobs."""
        for held in self.queues.held():
            if self.closed.is_closed(held.job.job_id):
                self.queues.remove(held)
                self.closed.let_go(held)

    def hand_back_old(self) -> None:
        """Put old records that pin or crowd others back to the tail, see `policy.holding`."""
        now_s = self.clock.monotonic_s()
        limit_s = self.hold_limit_s
        old = [h for h in self.queues.held() if now_s - h.ticket.arrived_s >= limit_s]
        if not old:
            return
        pinning = self.acks.pinning()
        served = {pool for pool in self.ledger.pools if self.ledger.best(pool, now_s=now_s)}
        count = 0
        for held in old:
            if count == HAND_BACKS_MAX or self.sender.is_full:
                return
            if hand_back(
                age_s=now_s - held.ticket.arrived_s,
                limit_s=limit_s,
                pins=held.ticket in pinning,
                crowds=self.queues.is_full and bool(served - {held.job.pool}),
            ):
                count += 1
                self.queues.remove(held)
                self.sender.hand_back(held)
                metrics.HAND_BACK.inc(len(held.items))
