"""Periodic maintenance of the queues: drop obsolete items, requeue old records, forget pools."""

from dataclasses import dataclass
from functools import partial
from typing import Final

from batcher import metrics
from batcher.faust_app.ordered_acks import AckTicket, OrderedAcks
from batcher.outbound.batch_sender import BatchSender
from batcher.policy.credits import CreditLedger
from batcher.queueing.drop_policy import ObsoleteItems
from batcher.queueing.queues import Queues
from core.clock import Clock
from topics.records.eligibility import required_model

PIN_GAIN: Final = {"bulk": 4.0, "interactive": 1.0}
"""By class: bytes of finished records per byte that is rewritten to have them committed.

After a crash finished records are read again (ADR 17). Bulk records are only read: their items have
rows. A durable call is executed again if Postgres is unavailable. Their values are not buffered.
"""

POOL_SEARCH_S: Final = 600.0
"""How long after a pool's last arrival other records are requeued to reach more for that pool.

Long enough to read intake's largest read-ahead once, at a hold limit of 30 s (ADR 17).
"""

REQUEUES_MAX: Final = 50
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
        """Drop obsolete items, queue unsent ones again, requeue old records, forget pools."""
        self.drop_obsolete()
        self.queue_unsent()
        self.queues.update_ranks()
        self.requeue_old()
        self.ledger.forget_silent_replicas(now_s=self.clock.monotonic_s())
        for name, pool in self.queues.pools.items():
            pool.end_credit_of_blocked(partial(self.ledger.is_served, name))
        self.forget_pools()

    def drop_obsolete(self) -> None:
        """Remove obsolete chunks and deferred records."""
        for chunk in self.queues.snapshot():
            if self.obsolete_items.settle_if_obsolete(chunk):
                self.queues.remove(chunk)
        self.queues.deferred.remove(self.obsolete_items.settle_if_obsolete)

    def queue_unsent(self) -> None:
        """Queue the items of batches whose partition is unavailable, for another partition."""
        for chunk in self.sender.take_back():
            self.queues.add(chunk, now_s=self.clock.monotonic_s())
            metrics.TAKEN_BACK_ITEMS.inc(len(chunk.items))

    def requeue_old(self) -> None:
        """Append old records that pin or crowd out others to the end of their topic (ADR 17).

        A record pins if later ones of its partition are finished but cannot be committed, and a
        crash would repeat more than requeueing rewrites, see `PIN_GAIN`. It crowds others out if
        the queues are full and another pool, or another version of its pool, has credit for items
        that do not fit in. Otherwise
        requeueing gains nothing: with a pool unavailable for a day, the topic must not grow by
        everything that is buffered again and again.
        """
        now_s = self.clock.monotonic_s()
        old = [c for c in self.queues.snapshot() if self._is_old(c.ticket, now_s)]
        old_deferred = [r for r in self.queues.deferred if self._is_old(r.ticket, now_s)]
        if not old and not old_deferred:
            return
        pinning = self.acks.pinning(PIN_GAIN[self.job_class])
        for record in [r for r in old_deferred if r.ticket in pinning][:REQUEUES_MAX]:
            record.is_urgent = True  # once it was read again, a later run requeues it
        was_full = self.queues.is_full  # before the first requeued chunk makes space
        with_credit = {
            pool for pool in self.ledger.pools if self.ledger.best_replicas(pool, now_s=now_s)
        }
        recent = {p for p in with_credit if now_s - self.queues.last_added_s(p) < POOL_SEARCH_S}
        count = 0
        for chunk in old:
            if count == REQUEUES_MAX or self.sender.is_full:
                return
            # The first chunk also makes space for pools without recent arrivals.
            pools = recent if count else with_credit
            is_served = self.ledger.is_served(chunk.job.pool, required_model(chunk.job))
            own = {chunk.job.pool} if is_served else set()
            crowds_out = was_full and pools - own
            if chunk.ticket in pinning or crowds_out:
                count += 1
                self.queues.remove(chunk)
                self.sender.requeue(chunk)
                metrics.REQUEUED_ITEMS.inc(len(chunk.items))

    def _is_old(self, ticket: AckTicket, now_s: float) -> bool:
        return now_s - ticket.arrived_s >= self.hold_limit_s

    def forget_pools(self) -> None:
        """Forget pools without waiting items and without replicas."""
        for pool in self.queues.forget_empty_pools(self.ledger.pools):
            for gauge in (metrics.BUFFERED_ITEMS, metrics.UNSERVED_ITEMS):
                gauge.remove(pool)
