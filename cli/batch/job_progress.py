"""How far a job is, how it ended, and waiting for its end."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cli.client import transient_errors
from cli.exits import ExitCode, WaitTimeoutError
from core.clock import Clock
from core.states import TERMINAL_STATES, JobState

if TYPE_CHECKING:
    from openai.types import Batch

POLL_S_MIN = 0.2
POLL_S_MAX = 5.0

POLL_TIMEOUT_S_MIN, POLL_TIMEOUT_S_MAX = 1.0, 10.0
"""How long one look may take: with little time left, still as long as a good server may need."""

UNAVAILABLE_S_MAX = 60.0
"""A server that has answered no look for this long ends the wait; a restart takes less."""


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The state of a job and how many of its items ended in which way."""

    state: JobState
    total: int  # 0 until the input file was validated
    succeeded: int
    failed: int
    cancelled: int
    expired: int

    @property
    def ended(self) -> int:
        """Items that have an outcome."""
        return self.succeeded + self.failed + self.cancelled + self.expired

    @property
    def is_over(self) -> bool:
        """Whether nothing about the job will change any more."""
        return self.state in TERMINAL_STATES


def progress_of(batch: "Batch") -> JobProgress:
    """Return the progress that a batch object tells, by our own field where it has one."""
    counts = batch.request_counts
    total = counts.total if counts else 0
    own = (batch.model_extra or {}).get("millrace")
    if not isinstance(own, dict):
        own = {"succeeded": counts.completed, "failed": counts.failed} if counts else {}
    outcomes = (int(own.get(n, 0)) for n in ("succeeded", "failed", "cancelled", "expired"))
    return JobProgress(JobState(batch.status), total, *outcomes)


def job_exit_code(progress: JobProgress) -> ExitCode:
    """Return the exit code of a command that saw this end of a job."""
    assert progress.is_over, progress.state
    if progress.state is not JobState.COMPLETED:
        return ExitCode.JOB_FAILED
    return ExitCode.ITEMS_FAILED if progress.failed else ExitCode.OK


def poll_pause_s(waited_s: float) -> float:
    """Return the pause before the next look: a twentieth of the wait so far, within bounds."""
    return min(POLL_S_MAX, max(POLL_S_MIN, waited_s / 20))


def wait_until_ended(
    look: Callable[[float], "Batch"],
    show: Callable[["Batch"], None],
    *,
    timeout_s: float | None,
    clock: Clock,
    sleep: Callable[[float], None],
) -> "Batch":
    """Look at a job, and show it, until it has ended; return it as it ended.

    `look` is told how many seconds it may take. A server that is away, fails or is busy is asked
    again for `UNAVAILABLE_S_MAX`. Raises WaitTimeoutError, and what the client raises.
    """
    began_s = answered_s = clock.monotonic_s()
    while True:
        left_s = math.inf if timeout_s is None else began_s + timeout_s - clock.monotonic_s()
        try:
            batch = look(min(POLL_TIMEOUT_S_MAX, max(POLL_TIMEOUT_S_MIN, left_s)))
        except transient_errors():
            if clock.monotonic_s() - answered_s > UNAVAILABLE_S_MAX:
                raise
        else:
            answered_s = clock.monotonic_s()
            show(batch)
            if progress_of(batch).is_over:
                return batch
        waited_s = clock.monotonic_s() - began_s
        pause_s = poll_pause_s(waited_s)
        if timeout_s is not None and waited_s + pause_s > timeout_s:
            raise WaitTimeoutError
        sleep(pause_s)
