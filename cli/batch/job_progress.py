"""The progress of a job, the exit code for its end, and the wait until it ends."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from cli.api_client import Batch, transient_errors
from cli.exits import ExitCode, WaitTimeoutError
from core.clock import Clock, SystemClock
from core.states import TERMINAL_STATES, JobState

POLL_S_MIN = 0.2
POLL_S_MAX = 5.0

POLL_TIMEOUT_S_MIN, POLL_TIMEOUT_S_MAX = 1.0, 10.0
"""Bounds of the timeout of one poll; a healthy server may need the lower one."""

UNAVAILABLE_S_MAX = 60.0
"""The wait ends when no poll has succeeded for this long; a restart of the API takes less."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The state of a job and the number of its items by outcome."""

    state: JobState
    total: int  # 0 until the input file is validated
    succeeded: int
    failed: int
    cancelled: int
    expired: int

    @property
    def ended(self) -> int:
        """The number of items that have an outcome."""
        return self.succeeded + self.failed + self.cancelled + self.expired

    @property
    def has_ended(self) -> bool:
        """Whether the job is in a terminal state."""
        return self.state in TERMINAL_STATES


def progress_of(batch: Batch) -> JobStatus:
    """Return the progress of a batch object, by its `millrace` field if it has one."""
    counts = batch.request_counts
    total = counts.total if counts else 0
    outcomes = (batch.model_extra or {}).get("millrace")
    if not isinstance(outcomes, dict):
        outcomes = {"succeeded": counts.completed, "failed": counts.failed} if counts else {}
    names = ("succeeded", "failed", "cancelled", "expired")
    return JobStatus(JobState(batch.status), total, *(int(outcomes.get(n, 0)) for n in names))


def job_exit_code(progress: JobStatus) -> ExitCode:
    """Return the exit code for a job that has ended."""
    assert progress.has_ended, progress.state
    if progress.state is not JobState.COMPLETED:
        return ExitCode.JOB_FAILED
    return ExitCode.ITEMS_FAILED if progress.failed else ExitCode.OK


def poll_pause_s(waited_s: float) -> float:
    """Return the pause before the next poll: a twentieth of the wait so far, within bounds."""
    return min(POLL_S_MAX, max(POLL_S_MIN, waited_s / 20))


def wait_until_ended(
    poll: Callable[[float], Batch],
    show: Callable[[Batch], None],
    *,
    timeout_s: float | None,
    clock: Clock | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Batch:
    """Poll and show a job until it has ended; return it.

    `poll` gets its timeout in seconds. Transient errors are retried for `UNAVAILABLE_S_MAX`.
    Raises WaitTimeoutError, and the errors of the client.
    """
    clock = clock or SystemClock()
    began_s = answered_s = clock.monotonic_s()
    while True:
        left_s = math.inf if timeout_s is None else began_s + timeout_s - clock.monotonic_s()
        try:
            batch = poll(min(POLL_TIMEOUT_S_MAX, max(POLL_TIMEOUT_S_MIN, left_s)))
        except transient_errors():
            if clock.monotonic_s() - answered_s > UNAVAILABLE_S_MAX:
                raise
        else:
            answered_s = clock.monotonic_s()
            show(batch)
            if progress_of(batch).has_ended:
                return batch
        waited_s = clock.monotonic_s() - began_s
        pause_s = poll_pause_s(waited_s)
        if timeout_s is not None and waited_s + pause_s > timeout_s:
            raise WaitTimeoutError
        sleep(pause_s)
