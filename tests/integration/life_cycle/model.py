"""A model of the documented life cycle of a job, in memory, to compare real jobs with."""

from dataclasses import dataclass, field

from core.outcomes import Outcome
from core.states import STOPPED_EARLY, TERMINAL_STATES, CloseReason, JobState

TOKENS = 8
"""Tokens of an item that succeeds."""

OPEN = {JobState.VALIDATING, JobState.IN_PROGRESS}


@dataclass
class Appended:
    """An appended file."""

    count: int
    state: str = "validating"


@dataclass
class JobModel:
    """A job and the operations on it."""

    count: int  # items of its first file
    sealed: bool
    max_failed: int | None
    max_tokens: int | None
    state: JobState = JobState.VALIDATING
    total: int | None = None
    final: bool = False
    settled: bool = False
    paused: bool = False
    is_past: bool = False  # its completion window has ended by the database's clock
    reason: CloseReason | None = None
    closed: bool = False  # the results writer has read its close
    closes: int = 0  # on the log, not read yet
    rows: dict[int, Outcome] = field(default_factory=dict)
    appended: list[Appended] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.final = self.sealed

    @property
    def is_open(self) -> bool:
        """Whether its owner can still change it."""
        return self.state in OPEN and self.reason is None and not self.settled and not self.is_past

    @property
    def pending(self) -> list[Appended]:
        """Files without a verdict."""
        return [file for file in self.appended if file.state == "validating"]

    @property
    def awaits_verdict(self) -> bool:
        """Whether its first file has no verdict."""
        return self.total is None and self.state in {JobState.VALIDATING, JobState.CANCELLING}

    def counted(self, outcome: Outcome) -> int:
        """Return the number of rows with an outcome."""
        return list(self.rows.values()).count(outcome)

    def validate_first(self, *, is_valid: bool) -> None:
        """Record the verdict on the first file."""
        if not is_valid:
            if self.state is JobState.CANCELLING:
                self.state, self.total = JobState.CANCELLED, 0
            else:
                self.state = JobState.FAILED
            self._drop()
            return
        self.total = self.count
        if self.state is JobState.VALIDATING:
            self.state = JobState.IN_PROGRESS
        if self.reason is not None:
            self.closes += 1
        elif self.is_past:
            self._close(CloseReason.EXPIRED)

    def validate_appended_file(self, *, is_valid: bool) -> None:
        """Record the verdict on the oldest pending file."""
        assert self.total is not None
        file = self.pending[0]
        file.state = "accepted" if is_valid else "refused"
        if is_valid:
            self.total += file.count
        self.final = self.sealed and not self.pending
        self._settle()

    def write(self, indexes: list[int], outcome: Outcome) -> None:
        """Write rows for outcomes."""
        if self.closed or not self.total:
            return
        new = {index for index in indexes if index < self.total} - self.rows.keys()
        if not new:
            return  # a close that completed the job settles it once the writer reads it
        self.rows |= dict.fromkeys(new, outcome)
        self._settle()
        if self.state is JobState.IN_PROGRESS and self.reason is None:
            self._stop_over_budget()

    def read_close(self) -> None:
        """Let the results writer read a close."""
        assert self.total is not None
        assert self.reason is not None
        self.closes -= 1
        self.closed = True
        outcome = Outcome.EXPIRED if self.reason is CloseReason.EXPIRED else Outcome.CANCELLED
        for index in range(self.total):
            self.rows.setdefault(index, outcome)
        self._settle()

    def cancel(self) -> bool:
        """Cancel; return False if the job has ended."""
        if self.state in TERMINAL_STATES:
            return False
        if self.state is not JobState.CANCELLING and self.reason is None:
            self._close(CloseReason.CANCELLED)
        return True

    def sweep(self) -> None:
        """Run the expiry sweep."""
        is_due = self.state is JobState.IN_PROGRESS and not self.settled and self.reason is None
        if is_due and self.is_past:
            self._close(CloseReason.EXPIRED)

    def seal(self) -> None:
        """Seal the open job."""
        if not self.sealed:
            self.sealed, self.final = True, not self.pending
            self._settle()

    def finalise(self) -> None:
        """Write the result files."""
        if self.state is JobState.CANCELLING:
            self.state = JobState.CANCELLED
        elif self.reason is CloseReason.EXPIRED:
            self.state = JobState.EXPIRED
        else:
            self.state = JobState.COMPLETED

    def _close(self, reason: CloseReason) -> None:
        self.reason, self.sealed, self.final = reason, True, True
        if reason in STOPPED_EARLY:
            self.state = JobState.CANCELLING
        self._drop()
        if self.total is not None and not self.settled:
            self.closes += 1

    def _drop(self) -> None:
        for file in self.pending:
            file.state = "dropped"

    def _settle(self) -> None:
        is_complete = self.final and self.total == len(self.rows)
        if (
            is_complete
            and not self.settled
            and self.state in {JobState.IN_PROGRESS, JobState.CANCELLING}
        ):
            self.settled = True
            if self.state is JobState.IN_PROGRESS:
                self.state = JobState.FINALIZING

    def _stop_over_budget(self) -> None:
        if self.max_failed is not None and self.counted(Outcome.FAILED) > self.max_failed:
            self._close(CloseReason.FAILURE_BUDGET)
        elif (
            self.max_tokens is not None
            and TOKENS * self.counted(Outcome.SUCCEEDED) >= self.max_tokens
        ):
            self._close(CloseReason.SPEND_CAP)
