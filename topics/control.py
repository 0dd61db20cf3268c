"""Which jobs are closed, as the control topic tells: a courtesy that saves work early.

What counts is decided on `results` alone; whoever asks here only avoids useless execution.
"""

from typing import Final
from uuid import UUID

from core.clock import Clock, SystemClock
from topics.catalogue import CONTROL, DAY_MS
from topics.consumer import Received
from topics.following import Following, readable
from topics.records import JobControl
from topics.settings import KafkaSettings
from topics.tail import TopicTail

CLOSED_JOBS_MAX: Final = 250_000
"""Jobs remembered at most, in about 50 MB."""

CLOSED_AGE_MS_MAX: Final = CONTROL.retention_days * DAY_MS
"""How long the records of a job live that were on the log when it was closed."""


class ClosedSet:
    """Jobs and when they were closed. The oldest go first: at worst their items run in vain.

    One thread changes it, any thread asks.
    """

    def __init__(self, *, count_max: int = CLOSED_JOBS_MAX) -> None:
        """Know nobody."""
        self._count_max = count_max
        self._closed_ms: dict[bytes, int] = {}  # in the order of closing

    def __contains__(self, job_id: UUID) -> bool:
        """Whether the job is known as closed."""
        return job_id.bytes in self._closed_ms

    def __len__(self) -> int:
        """Jobs in memory."""
        return len(self._closed_ms)

    def add(self, job_id: UUID, closed_ms: int) -> None:
        """Note a job; one that is closed again counts from now on."""
        self.discard(job_id.bytes)
        self._closed_ms[job_id.bytes] = closed_ms

    def discard(self, job_id_bytes: bytes) -> None:
        """Forget a job."""
        self._closed_ms.pop(job_id_bytes, None)

    def forget(self, now_ms: int) -> None:
        """Forget jobs whose records have left the log, and the oldest of too many."""
        while self._closed_ms:
            oldest = next(iter(self._closed_ms))
            is_past = self._closed_ms[oldest] < now_ms - CLOSED_AGE_MS_MAX
            if not is_past and len(self._closed_ms) <= self._count_max:
                return
            del self._closed_ms[oldest]


class ClosedJobs:
    """The set of closed jobs, read to its end at start and followed by a thread."""

    def __init__(
        self, settings: KafkaSettings, *, client_id: str, clock: Clock | None = None
    ) -> None:
        """Read nothing yet."""
        self._tail = TopicTail(settings, CONTROL, client_id=f"{client_id}-control")
        self._clock = clock or SystemClock()
        self._closed = ClosedSet()
        self._following = Following(self._tail, self._apply, name="control-tail")

    def start(self, timeout_s: float) -> None:
        """Read to the end, then follow. Raises LogUnavailableError."""
        for records in self._tail.pieces_to_end(timeout_s):
            self._apply(records)
        self._following.start()

    def is_closed(self, job_id: UUID) -> bool:
        """Whether results of the job have stopped to count.

        Raises what ended the following, such as SchemaTooNewError or LogUnavailableError.
        """
        self._following.check()
        return job_id in self._closed

    def stop(self) -> None:
        """Stop following."""
        self._following.stop()

    def _apply(self, records: list[Received]) -> None:
        for record, control in readable(JobControl, records):
            if control is not None and control.closed is not None:
                self._closed.add(control.job_id, record.appended_ms)
            elif record.key is not None:
                self._closed.discard(record.key)
        self._closed.forget(int(self._clock.wall_s() * 1000))
