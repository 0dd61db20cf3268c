"""Control states of jobs from `control`: closed, paused, priority, deadline.

Readers use them to avoid useless execution only. The results writer decides what counts, so a stale
state costs wasted work and nothing else.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final
from uuid import UUID

from core.clock import Clock
from core.states import CloseReason
from topics.records.catalogue import CONTROL, DAY_MS
from topics.records.received_record import ReceivedRecord
from topics.records.records import JobControl, JobRef
from topics.settings import KafkaSettings
from topics.tail_readers.commit_watermarks import LogWatermarks
from topics.tail_readers.tail_reader_thread import TailReaderThread, decode_records
from topics.tail_readers.topic_tail_reader import TopicTailReader

CONTROLS_MAX: Final = 250_000
"""Jobs in memory at most, in about 100 MB."""

START_OFFSETS_MAX: Final = 3_500_000
"""Offsets before the end that a start reads, at about 13 µs of CPU each: 14 for each job in memory,
and more than there are watermarks in the retention of the topic."""

CONTROL_AGE_MS_MAX: Final = CONTROL.retention_days * DAY_MS
"""Retention of the records that were on the log when a job's control state changed."""

_CLOSED: Final = {
    reason: JobControl(UUID(int=0), version=0, closed=reason) for reason in CloseReason
}
"""Closed jobs share these: nothing but the reason matters of them."""


class JobControlCache:
    """The newest control state of each job, by arrival; the oldest are evicted first.

    An evicted state costs executions whose results do not count. One thread writes, any may read.
    """

    def __init__(self, *, count_max: int = CONTROLS_MAX) -> None:
        self._count_max = count_max
        # In the order of arrival; a dict would search all evicted entries for its first one.
        self._known: OrderedDict[bytes, tuple[int, JobControl]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, job_id: UUID) -> JobControl | None:
        """Return the newest state of a job; None when its owner has changed nothing."""
        found = self._known.get(job_id.bytes)
        return None if found is None else found[1]

    def apply(self, control: JobControl, appended_ms: int) -> None:
        """Store a state unless a newer one is known; a close is final."""
        known = self.get(control.job_id)
        is_older = known is not None and (known.closed or known.version >= control.version)
        if control.closed is None and is_older:
            return
        self.discard(control.job_id.bytes)
        state = control if control.closed is None else _CLOSED[control.closed]
        self._known[control.job_id.bytes] = (appended_ms, state)

    def discard(self, job_id_bytes: bytes) -> None:
        """Remove a job."""
        self._known.pop(job_id_bytes, None)

    def evict_stale(self, now_ms: int) -> None:
        """Remove jobs whose records have left the log, and the oldest of too many."""
        while self._known:
            oldest = next(iter(self._known))
            is_past = self._known[oldest][0] < now_ms - CONTROL_AGE_MS_MAX
            if not is_past and len(self._known) <= self._count_max:
                return
            del self._known[oldest]


class JobControlReader:
    """Reads `control` to its end at start, then keeps the states up to date in a thread.

    Every query raises the failure that ended the thread, such as SchemaTooNewError,
    KafkaUnavailableError, or CommitsLostError once intake has written that to the topic.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        client_id: str,
        clock: Clock,
        on_change: Callable[[JobControl], None] = lambda _: None,
    ) -> None:
        """Read nothing yet. `on_change` is called in the thread for each state after `start`."""
        self._reader = TopicTailReader(settings, CONTROL, client_id=f"{client_id}-control")
        self._clock, self._on_change = clock, on_change
        self._controls = JobControlCache()
        self.watermarks = LogWatermarks()
        self._thread = TailReaderThread(self._reader, self._handle, name="control-tail")

    def start(self, timeout_s: float) -> None:
        """Read the newest states to the end, then start the thread.

        Raises KafkaUnavailableError, and CommitsLostError as the thread does.
        """
        self._reader.seek_before_end(START_OFFSETS_MAX, timeout_s)
        for records in self._reader.iter_to_end(timeout_s):
            self._apply(records)
        self.watermarks.raise_if_lost()
        self._thread.start()

    def raise_failure(self) -> None:
        """Raise the failure that ended the thread, if one did."""
        self._thread.raise_failure()

    @property
    def job_count(self) -> int:
        """The number of jobs in memory."""
        return len(self._controls)

    def is_closed(self, job_id: UUID) -> bool:
        """Whether the job is closed, so that its results do not count any more."""
        self._thread.raise_failure()
        control = self._controls.get(job_id)
        return control is not None and control.closed is not None

    def newer_control(self, job: JobRef) -> JobControl | None:
        """Return the job's state if it changed after the record with `job` was emitted."""
        self._thread.raise_failure()
        control = self._controls.get(job.job_id)
        if control is None or (control.closed is None and control.version <= job.version):
            return None
        return control

    def stop(self) -> None:
        """Stop the thread."""
        self._thread.stop()

    def _handle(self, records: list[ReceivedRecord]) -> None:
        for control in self._apply(records):
            self._on_change(control)
        self.watermarks.raise_if_lost()

    def _apply(self, records: list[ReceivedRecord]) -> list[JobControl]:
        changed = []
        for record, control in decode_records(JobControl, records):
            if control is not None:
                if self.watermarks.apply(control):
                    continue
                self._controls.apply(control, record.appended_ms)
                changed.append(control)
            elif record.key is not None:
                self._controls.discard(record.key)
        self._controls.evict_stale(int(self._clock.wall_s() * 1000))
        return changed


def obsolete_reason(job: JobRef, control: JobControl | None, now_s: float | None) -> str | None:
    """Return why an item of a batch must not start any more, as a metric's label, or None.

    `control` is from `JobControlReader.newer_control`; `now_s` is the database's time, None while
    unknown.
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
    """Return the job's priority among the jobs of its tenant."""
    return job.priority if control is None or control.closed is not None else control.priority
