"""Which buffered items are obsolete and dropped, and the rank of a job within its tenant.

Obsolete are the items of closed, paused and expired jobs, and online calls without a live caller.
"""

from dataclasses import dataclass
from typing import Protocol

from batcher import metrics
from batcher.database_clock import DatabaseClock
from batcher.faust_app.ordered_acks import OrderedAcks
from batcher.queueing.buffered_chunk import BufferedChunk
from batcher.queueing.deferred_records import DeferredRecord
from core.urgency import rank
from topics.records.records import JobControl, JobRef
from topics.tail_readers.job_controls import (
    effective_deadline_s,
    effective_priority,
    obsolete_reason,
)


class ControlStates(Protocol):
    """The latest control state of each job."""

    def newer_control(self, job: JobRef) -> JobControl | None:
        """Return the job's state if it changed after the record with `job` was emitted."""
        ...


class IsObsoleteCall(Protocol):
    """Whether an online call was aborted, has waited too long, or has lost its caller."""

    def __call__(self, job: JobRef, /, *, since_s: float) -> bool:
        """Evaluate a call that arrived at monotonic time `since_s`."""
        ...


@dataclass(frozen=True, slots=True)
class DropPolicy:
    """Decides by control states, the database's time and callers; used on the event loop."""

    controls: ControlStates
    time: DatabaseClock
    is_obsolete_call: IsObsoleteCall | None = None  # None: this class has no online calls

    def drop_reason(self, job: JobRef, *, since_s: float) -> str | None:
        """Return why items of the job are dropped, as the metric's label, or None to keep them.

        The items arrived at monotonic time `since_s`. Another process writes their rows, emits them
        again or answers the caller. An online call's deadline is by its caller's clock and is
        checked by `is_obsolete_call`.
        """
        now_s = None if job.call is not None else self.time.database_s()
        reason = obsolete_reason(job, self.controls.newer_control(job), now_s)
        if reason is not None:
            return reason
        if job.call is None or self.is_obsolete_call is None:
            return None
        return "gone" if self.is_obsolete_call(job, since_s=since_s) else None

    def rank(self, job: JobRef) -> int:
        """Return the job's rank among those of its tenant; the lowest goes first."""
        if job.call is not None:
            return 0
        control = self.controls.newer_control(job)
        return rank(
            effective_priority(job, control),
            effective_deadline_s(job, control) - self.time.wall_s(),
        )


@dataclass(frozen=True, slots=True)
class ObsoleteItems:
    """Settles obsolete items without dispatching them."""

    acks: OrderedAcks
    policy: DropPolicy

    def settle_if_obsolete(self, chunk: BufferedChunk | DeferredRecord) -> bool:
        """Return whether the chunk is obsolete; its items are then settled."""
        reason = self.policy.drop_reason(chunk.job, since_s=chunk.ticket.arrived_s)
        if reason is None:
            return False
        metrics.ITEMS_DROPPED.labels(reason).inc(chunk.item_count)
        self.acks.settle(chunk.ticket, chunk.item_count)
        return True
