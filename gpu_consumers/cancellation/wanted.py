"""Whether items of a batch are still wanted: what their owner decided, and their deadline.

A courtesy that saves work; `results` alone decides what counts. No clock of this host takes part:
batchers tell what the time is by the database.
"""

from typing import Final

from core.clock import Clock
from core.database_time import DatabaseTime
from topics.records.records import JobRef
from topics.tail_readers.job_controls import JobControlReader, effective_deadline_s, obsolete_reason

LATE_S_MAX: Final = 0.5
"""How late the time may be that batchers told, by their word's way here, and an item may come to
its engine, on a host that is short of CPU: nothing begins so near to its deadline."""

_RUNS_ON: Final = frozenset({None, "void"})


class Wanted:
    """Judges jobs of batches; used on the event loop."""

    def __init__(self, controls: JobControlReader, time: DatabaseTime, clock: Clock) -> None:
        """`time` is told by others; until it is known nothing expires here."""
        self._controls, self._time, self._clock = controls, time, clock

    def over(self, job: JobRef) -> str | None:
        """Return why an item of the job must not begin any more, or None.

        Raises what ended the following of control states.
        """
        return obsolete_reason(job, self._controls.newer_control(job), self._now_s())

    def is_useless(self, job: JobRef) -> bool:
        """Whether even an item that runs is of no use: one of a paused job is, and runs on."""
        return self.over(job) not in _RUNS_ON

    def left_s(self, job: JobRef) -> float | None:
        """Return the seconds until nothing of the job may begin; None while that is not known."""
        now_s = self._now_s()
        return (
            None
            if now_s is None
            else effective_deadline_s(job, self._controls.newer_control(job)) - now_s
        )

    def _now_s(self) -> float | None:
        now_s = self._time.now_s(self._clock.monotonic_s())
        return None if now_s is None else now_s + LATE_S_MAX
