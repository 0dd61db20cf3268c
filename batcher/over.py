"""What is not worth sending any more: items of jobs that are closed, paused or expired, and calls
that nobody waits for.
"""

from collections.abc import Callable
from dataclasses import dataclass

from batcher import metrics
from batcher.acks import OrderedAcks
from batcher.held import Held
from topics.records import JobRef


@dataclass(frozen=True, slots=True)
class OverJobs:
    """Says of a job that it is over: its rows are written, its items emitted again, or its caller
    answered, without us.
    """

    why: Callable[[JobRef], str | None]
    """Why items of the job must not be sent any more: what its owner or the database says."""

    is_gone: Callable[[JobRef], bool]
    """Whether an online call was aborted, waited too long, or has lost its caller."""

    def reason(self, job: JobRef) -> str | None:
        """Return why the job is over, as the metric's label, or None while it is not."""
        if (reason := self.why(job)) is not None:
            return reason
        if job.call is not None and self.is_gone(job):
            return "gone"
        return None


@dataclass(frozen=True, slots=True)
class LettingGo:
    """Settles held items of jobs that are over, unsent."""

    acks: OrderedAcks
    over: OverJobs

    def let_go(self, held: Held) -> bool:
        """Whether the chunk's job is over; then its items are settled here."""
        reason = self.over.reason(held.job)
        if reason is None:
            return False
        metrics.ITEMS_DROPPED.labels(reason).inc(len(held.items))
        self.acks.settle(held.ticket, len(held.items))
        return True
