"""What owners decided about running jobs, as the control topic tells: a courtesy that saves work.

What counts is decided on `results` alone; whoever asks here only avoids useless execution, and an
old answer costs no more than that.
"""

from collections.abc import Callable
from typing import Final
from uuid import UUID

from core.clock import Clock
from core.states import CloseReason
from topics.records.catalogue import CONTROL, DAY_MS
from topics.records.received_record import ReceivedRecord
from topics.records.records import JobControl, JobRef
from topics.settings import KafkaSettings
from topics.tail_readers.tail_reader_thread import TailReaderThread, decode_records
from topics.tail_readers.topic_tail_reader import TopicTailReader

CONTROLS_MAX: Final = 250_000
"""Jobs remembered at most, in about 60 MB."""

CONTROL_AGE_MS_MAX: Final = CONTROL.retention_days * DAY_MS
"""How long the records of a job live that were on the log when its control state changed."""

_CLOSED: Final = {
    reason: JobControl(UUID(int=0), version=0, closed=reason) for reason in CloseReason
}
"""Of a closed job nothing else matters: all of them share these."""


class JobControlCache:
    """Control states and when they came. The oldest go first: at worst items run in vain.

    One thread changes it, any thread asks.
    """

    def __init__(self, *, count_max: int = CONTROLS_MAX) -> None:
        """Know nobody."""
        self._count_max = count_max
        self._known: dict[bytes, tuple[int, JobControl]] = {}  # in the order of arrival

    def __len__(self) -> int:
        """Jobs in memory."""
        return len(self._known)

    def get(self, job_id: UUID) -> JobControl | None:
        """Return the newest state of a job; None when its owner has changed nothing."""
        found = self._known.get(job_id.bytes)
        return None if found is None else found[1]

    def apply(self, control: JobControl, came_ms: int) -> None:
        """Note a state; an older one than is known changes nothing, and a close is final."""
        known = self.get(control.job_id)
        is_older = known is not None and (known.closed or known.version >= control.version)
        if control.closed is None and is_older:
            return
        self.discard(control.job_id.bytes)
        state = control if control.closed is None else _CLOSED[control.closed]
        self._known[control.job_id.bytes] = (came_ms, state)

    def discard(self, job_id_bytes: bytes) -> None:
        """Forget a job."""
        self._known.pop(job_id_bytes, None)

    def evict_stale(self, now_ms: int) -> None:
        """Forget jobs whose records have left the log, and the oldest of too many."""
        while self._known:
            oldest = next(iter(self._known))
            is_past = self._known[oldest][0] < now_ms - CONTROL_AGE_MS_MAX
            if not is_past and len(self._known) <= self._count_max:
                return
            del self._known[oldest]


class JobControlReader:
    """The control states of jobs, read to their end at start and followed by a thread.

    Every question raises what ended the following, such as SchemaTooNewError or
    LogUnavailableError.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        client_id: str,
        clock: Clock,
        on_change: Callable[[JobControl], None] = lambda _: None,
    ) -> None:
        """Read nothing yet. `on_change` is called in the thread, for what comes after `start`."""
        self._tail = TopicTailReader(settings, CONTROL, client_id=f"{client_id}-control")
        self._clock, self._on_change = clock, on_change
        self._controls = JobControlCache()
        self._following = TailReaderThread(self._tail, self._follow, name="control-tail")

    def start(self, timeout_s: float) -> None:
        """Read to the end, then follow. Raises LogUnavailableError."""
        for records in self._tail.pieces_to_end(timeout_s):
            self._apply(records)
        self._following.start()

    def raise_failure(self) -> None:
        """Raises what ended the following, for whoever has nothing to ask."""
        self._following.raise_failure()

    def is_closed(self, job_id: UUID) -> bool:
        """Whether results of the job have stopped to count."""
        self._following.raise_failure()
        control = self._controls.get(job_id)
        return control is not None and control.closed is not None

    def newer_control(self, job: JobRef) -> JobControl | None:
        """Return the job's state if it changed after the record with `job` was emitted."""
        self._following.raise_failure()
        control = self._controls.get(job.job_id)
        if control is None or (control.closed is None and control.version <= job.version):
            return None
        return control

    def stop(self) -> None:
        """Stop following."""
        self._following.stop()

    def _follow(self, records: list[ReceivedRecord]) -> None:
        for control in self._apply(records):
            self._on_change(control)

    def _apply(self, records: list[ReceivedRecord]) -> list[JobControl]:
        changed = []
        for record, control in decode_records(JobControl, records):
            if control is not None:
                self._controls.apply(control, record.appended_ms)
                changed.append(control)
            elif record.key is not None:
                self._controls.discard(record.key)
        self._controls.evict_stale(int(self._clock.wall_s() * 1000))
        return changed


def obsolete_reason(job: JobRef, control: JobControl | None, now_s: float | None) -> str | None:
    """Return why an item of a batch must not start any more, as a metric's label, or None.

    `control` is `JobControlReader.newer_control`, `now_s` the database's time, None while it is not known.
    """
    if control is not None:
        if control.closed is not None:
            return "closed"
        if job.version < control.void_below:
            return "void"
    if now_s is not None and now_s >= effective_deadline_s(job, control):
        return "expired"
    return None


def effective_deadline_s(job: JobRef, control: JobControl | None) -> float:
    """Return the job's deadline, seconds since the epoch by the database's time."""
    return control.deadline_s if control is not None and control.deadline_s else job.deadline_s


def effective_priority(job: JobRef, control: JobControl | None) -> int:
    """Return the job's priority among those of its tenant."""
    return job.priority if control is None or control.closed is not None else control.priority
