"""What is not worth sending any more: items of jobs that are closed, paused or expired, and calls
that nobody waits for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from batcher import metrics
from batcher.faust_app.ordered_acks import OrderedAcks
from batcher.queueing.buffered_chunk import BufferedChunk
from topics.records.records import JobRef


class IsGone(Protocol):
    """Whether an online call was aborted, waited too long, or has lost its caller."""

    def __call__(self, job: JobRef, /, *, since_s: float) -> bool:
        """Judge a call that is here since monotonic time `since_s`."""
        ...


@dataclass(frozen=True, slots=True)
class OverJobs:
    """Says of a job that it is over: its rows are written, its items emitted again, or its caller
    answered, without us.
    """

    why: Callable[[JobRef], str | None]
    """Why items of the job must not be sent any more: what its owner or the database says."""

    is_gone: IsGone

    def reason(self, job: JobRef, *, since_s: float) -> str | None:
        """Return why the job is over, as the metric's label, or None while it is not.

        Its items are here since monotonic time `since_s`.
        """
        if (reason := self.why(job)) is not None:
            return reason
        if job.call is not None and self.is_gone(job, since_s=since_s):
            return "gone"
        return None


@dataclass(frozen=True, slots=True)
class LettingGo:
    """Settles held items of jobs that are over, unsent."""

    acks: OrderedAcks
    over: OverJobs

    def let_go(self, held: BufferedChunk) -> bool:
        """Whether the chunk's job is over; then its items are settled here."""
        reason = self.over.reason(held.job, since_s=held.ticket.arrived_s)
        if reason is None:
            return False
        metrics.ITEMS_DROPPED.labels(reason).inc(len(held.items))
        self.acks.settle(held.ticket, len(held.items))
        return True
