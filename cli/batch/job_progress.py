"""Reads a job's progress and waits for its end."""

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

FETCH_S_MIN, FETCH_S_MAX = 1.0, 10.0
"""Timeout of one request. The minimum holds even with less time left: a server may need it."""

UNAVAILABLE_S_MAX = 60.0
"""Time without an answer after which a wait fails; a restart of the server takes less."""


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The state of a job and the number of its items by outcome."""

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
    def has_ended(self) -> bool:
        """Whether the job is in a terminal state."""
        return self.state in TERMINAL_STATES


def progress_of(batch: "Batch") -> JobProgress:
    """Return the progress of a batch object, from its `millrace` field if it has one."""
    counts = batch.request_counts
    total = counts.total if counts else 0
    own = (batch.model_extra or {}).get("millrace")
    if not isinstance(own, dict):
        own = {"succeeded": counts.completed, "failed": counts.failed} if counts else {}
    outcomes = (int(own.get(n, 0)) for n in ("succeeded", "failed", "cancelled", "expired"))
    return JobProgress(JobState(batch.status), total, *outcomes)


def exit_code_of(progress: JobProgress) -> ExitCode:
    """Return the exit code of a command for a job that has ended."""
    assert progress.has_ended, progress.state
    if progress.state is not JobState.COMPLETED:
        return ExitCode.JOB_FAILED
    return ExitCode.ITEMS_FAILED if progress.failed else ExitCode.OK


def poll_pause_s(waited_s: float) -> float:
    """Return the pause before the next poll: a twentieth of the wait so far, within bounds."""
    return min(POLL_S_MAX, max(POLL_S_MIN, waited_s / 20))


def wait_for_end(
    fetch: Callable[[float], "Batch"],
    show: Callable[["Batch"], None],
    *,
    timeout_s: float | None,
    clock: Clock,
    sleep: Callable[[float], None],
) -> "Batch":
    """Poll and show a job until it has ended; return its last state.

    `fetch` gets its timeout in seconds. Polls are retried for `UNAVAILABLE_S_MAX` while the server
    is unavailable, fails or is busy. Raises WaitTimeoutError, and the client's errors.
    """
    started_s = answered_s = clock.monotonic_s()
    while True:
        left_s = math.inf if timeout_s is None else started_s + timeout_s - clock.monotonic_s()
        try:
            batch = fetch(min(FETCH_S_MAX, max(FETCH_S_MIN, left_s)))
        except transient_errors():
            if clock.monotonic_s() - answered_s > UNAVAILABLE_S_MAX:
                raise
        else:
            answered_s = clock.monotonic_s()
            show(batch)
            if progress_of(batch).has_ended:
                return batch
        waited_s = clock.monotonic_s() - started_s
        pause_s = poll_pause_s(waited_s)
        if timeout_s is not None and waited_s + pause_s > timeout_s:
            raise WaitTimeoutError
        sleep(pause_s)
