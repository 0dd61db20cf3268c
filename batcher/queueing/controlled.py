"""What the owners of jobs and the database's time say about held items, chunk by chunk."""

from dataclasses import dataclass
from typing import Protocol

from core.urgency import rank
from topics.records.records import JobControl, JobRef
from topics.tail_readers.job_controls import (
    effective_deadline_s,
    effective_priority,
    obsolete_reason,
)


class Controls(Protocol):
    """What is asked of control states."""

    def newer_control(self, job: JobRef) -> JobControl | None:
        """Return the job's state if it changed after the record with `job` was emitted."""
        ...


class Time(Protocol):
    """What is asked of the database's clock."""

    def wall_s(self) -> float:
        """Seconds since the epoch, by the database when that is known."""
        ...

    def database_s(self) -> float | None:
        """The database's time; None while it is not known."""
        ...


@dataclass(frozen=True, slots=True)
class Controlled:
    """Judges held jobs; used on the event loop."""

    controls: Controls
    time: Time

    def over(self, job: JobRef) -> str | None:
        """Return why items of the job must not be sent any more, as the metric's label, or None.

        The deadline of an online call is by its caller's clock, and judged elsewhere.
        """
        now_s = None if job.call is not None else self.time.database_s()
        return obsolete_reason(job, self.controls.newer_control(job), now_s)

    def rank(self, job: JobRef) -> int:
        """Return the job's place among those of its tenant; the lowest goes first."""
        if job.call is not None:
            return 0
        control = self.controls.newer_control(job)
        return rank(
            effective_priority(job, control),
            effective_deadline_s(job, control) - self.time.wall_s(),
        )
