"""Decides which online calls still have a live caller, from the heartbeats on `callers`.

Each API replica, a caller, publishes a heartbeat every `CALLER_HEARTBEAT_S`. A caller without one
for `CALLER_TIMEOUT_S` is dead, and its calls are abandoned unless they are durable. The timeout
counts from the last record read, not from wall time: a heartbeat that waits unread on the topic is
late, not missing. So a caller counts as dead only once the topic is known to be read up to a moment
that lies `CALLER_TIMEOUT_S` after its last heartbeat. Deadlines are by the caller's own clock,
which its heartbeats carry; the local clock only measures the time since the last heartbeat.
"""

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from core.clock import Clock
from topics.errors import KafkaUnavailableError
from topics.records.catalogue import CALLERS
from topics.records.received_record import ReceivedRecord
from topics.records.records import CallerHeartbeat, CallRef, JobRef
from topics.settings import KafkaSettings
from topics.tail_readers.tail_reader_thread import TailReaderThread, decode_records
from topics.tail_readers.topic_tail_reader import TopicTailReader

CALLER_HEARTBEAT_S: Final = 0.5
"""Interval between two heartbeats of a caller."""

CALLER_TIMEOUT_S: Final = 3.0
"""Time without a heartbeat after which a caller is dead."""

CALLER_RETENTION_S: Final = 3600.0
"""Time without a heartbeat after which a caller's clock is forgotten."""

ABORTED_CALLS_MAX: Final = 100_000
"""Aborted calls in memory; the oldest are evicted first."""

_POLL_S: Final = 0.2
"""Interval of the checks for dead callers while no heartbeat arrives."""


@dataclass(frozen=True, slots=True)
class _LastHeartbeat:
    read_at_s: float  # monotonic
    clock_s: float  # the caller's
    is_leaving: bool


class CallerLiveness:
    """The state of every caller. Time is an argument; one thread writes, any thread may read."""

    def __init__(self, *, since_s: float) -> None:
        """Know no caller; heartbeats are read from monotonic time `since_s` on."""
        self._since_s = self._complete_s = since_s
        self._undecided_s = -math.inf  # when `is_dead` last lacked knowledge of the topic's end
        self._callers: dict[str, _LastHeartbeat] = {}
        self._aborted: OrderedDict[UUID, None] = OrderedDict()

    def record_heartbeat(self, heartbeat: CallerHeartbeat, *, now_s: float) -> None:
        """Record a heartbeat that was read at monotonic time `now_s`."""
        self._callers[heartbeat.caller_id] = _LastHeartbeat(
            now_s, heartbeat.now_s, heartbeat.leaving
        )
        for request_id in heartbeat.aborted:
            self._aborted[request_id] = None
        while len(self._aborted) > ABORTED_CALLS_MAX:
            self._aborted.popitem(last=False)

    def mark_complete_until(self, moment_s: float) -> None:
        """Record that all heartbeats appended until this monotonic time have been read."""
        self._complete_s = max(self._complete_s, moment_s)

    def needs_end_offsets(self, *, now_s: float) -> bool:
        """Whether a caller's death cannot be decided before `mark_complete_until` is called."""
        return self._undecided_s >= self._complete_s or any(
            self._complete_s - last.read_at_s <= CALLER_TIMEOUT_S < now_s - last.read_at_s
            for last in self._callers.values()
        )

    def is_abandoned(self, job: JobRef, *, since_s: float, now_s: float) -> bool:
        """Whether an online call that arrived at `since_s` was aborted or its caller is dead.

        Never true of a batch. A durable call outlives its caller.
        """
        if job.call is None:
            return False
        if job.job_id in self._aborted:
            return True
        if job.call.durable:
            return False
        return self.is_dead(job.call.caller_id, since_s=since_s, now_s=now_s)

    def is_silent(self, caller_id: str, *, now_s: float) -> bool:
        """Whether no heartbeat was read lately: the caller is dead or its heartbeats are late.

        For an unknown caller the timeout counts from the start of reading.
        """
        last = self._callers.get(caller_id)
        if last is not None and last.is_leaving:
            return True
        return now_s - (self._since_s if last is None else last.read_at_s) > CALLER_TIMEOUT_S

    def is_dead(self, caller_id: str, *, since_s: float, now_s: float) -> bool:
        """Whether the caller has left, or timed out at a moment after `since_s`.

        `since_s` is when its call arrived here: a caller that lived then is known by that moment.
        """
        if not self.is_silent(caller_id, now_s=now_s):
            return False
        last = self._callers.get(caller_id)
        if last is not None and last.is_leaving:
            return True
        last_s = self._since_s if last is None else last.read_at_s
        if self._complete_s > since_s and self._complete_s - last_s > CALLER_TIMEOUT_S:
            return True
        self._undecided_s = now_s
        return False

    def is_expired(self, job: JobRef, *, now_s: float) -> bool:
        """Whether an online call's deadline is past; False while its caller's clock is unknown.

        The caller enforces deadlines too, by aborting; this is earlier, and covers a dead caller.
        """
        clock_s = None if job.call is None else self._clock_s(job.call, now_s)
        return clock_s is not None and clock_s > job.deadline_s

    def start_wait_left_s(self, job: JobRef, *, now_s: float) -> float | None:
        """Return the seconds that an online call may still wait before its execution starts.

        None when only its deadline bounds the wait, or while its caller's clock is unknown.
        """
        if job.call is None or not job.call.begin_by_s:
            return None
        clock_s = self._clock_s(job.call, now_s)
        return None if clock_s is None else job.call.begin_by_s - clock_s

    def evict_stale(self, *, now_s: float) -> None:
        """Forget callers without a heartbeat for `CALLER_RETENTION_S`."""
        for caller_id, last in list(self._callers.items()):
            if now_s - last.read_at_s > CALLER_RETENTION_S:
                del self._callers[caller_id]

    def _clock_s(self, call: CallRef, now_s: float) -> float | None:
        last = self._callers.get(call.caller_id)
        return None if last is None else last.clock_s + (now_s - last.read_at_s)


class _CallersTail(TopicTailReader):
    fetch_wait_ms = 500
    """The request for the end offset waits behind a fetch, and delays an abort."""


class CallerHeartbeatReader:
    """Reads `callers` from its end in a thread."""

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        client_id: str,
        clock: Clock,
        on_heartbeat: Callable[[CallerHeartbeat], None] = lambda _: None,
    ) -> None:
        """`on_heartbeat` is called in the thread, after the heartbeat is recorded here."""
        self._reader = _CallersTail(
            settings, CALLERS, client_id=f"{client_id}-callers", reset_to_earliest=False
        )
        self._clock, self._on_heartbeat = clock, on_heartbeat
        self._liveness = CallerLiveness(since_s=clock.monotonic_s())
        self._unread: tuple[float, dict[int, int]] | None = None  # end offsets, and when requested
        self._thread = TailReaderThread(
            self._reader, self._apply, name="callers-tail", poll_s=_POLL_S
        )

    def start(self, timeout_s: float) -> None:
        """Seek to the end and start the thread. Raises KafkaUnavailableError."""
        self._reader.seek_to_end(timeout_s)
        self._liveness = CallerLiveness(since_s=self._clock.monotonic_s())
        self._thread.start()

    def is_abandoned(self, job: JobRef, *, since_s: float) -> bool:
        """Whether an online call has no caller any more, or its deadline is past.

        `since_s` is the monotonic time of its arrival. Raises the failure that ended the thread:
        without heartbeats the process must not go on.
        """
        self._thread.raise_failure()
        if job.call is None:
            return False
        now_s = self._clock.monotonic_s()
        is_abandoned = self._liveness.is_abandoned(job, since_s=since_s, now_s=now_s)
        return is_abandoned or self._liveness.is_expired(job, now_s=now_s)

    def is_expired(self, job: JobRef) -> bool:
        """Whether an online call's deadline is past, as far as its caller's clock is known."""
        return self._liveness.is_expired(job, now_s=self._clock.monotonic_s())

    def start_wait_left_s(self, job: JobRef) -> float | None:
        """Return the seconds that an online call may still wait before its execution starts.

        None without such a bound, or while its caller's clock is unknown.
        """
        return self._liveness.start_wait_left_s(job, now_s=self._clock.monotonic_s())

    def is_obsolete(self, job: JobRef, *, since_s: float) -> bool:
        """Whether an online call that has not started need not be dispatched.

        A durable call that waited too long is dispatched: only a replica records its end.
        """
        if self.is_abandoned(job, since_s=since_s):
            return True
        if job.call is None or job.call.durable:
            return False
        left_s = self.start_wait_left_s(job)
        return left_s is not None and left_s <= 0

    def is_silent(self, caller_id: str) -> bool:
        """Whether no heartbeat was read lately: the caller is dead or its heartbeats are late."""
        return self._liveness.is_silent(caller_id, now_s=self._clock.monotonic_s())

    def is_dead(self, caller_id: str, *, since_s: float) -> bool:
        """Whether the caller of a call that arrived at `since_s` has left or timed out."""
        return self._liveness.is_dead(caller_id, since_s=since_s, now_s=self._clock.monotonic_s())

    def stop(self) -> None:
        """Stop the thread."""
        self._thread.stop()

    def _apply(self, records: list[ReceivedRecord]) -> None:
        now_s = self._clock.monotonic_s()
        for _, heartbeat in decode_records(CallerHeartbeat, records):
            if heartbeat is not None:
                self._liveness.record_heartbeat(heartbeat, now_s=now_s)
                self._on_heartbeat(heartbeat)
        self._liveness.evict_stale(now_s=now_s)
        self._confirm_read_position()

    def _confirm_read_position(self) -> None:
        """While a caller is silent, request the end offsets and note when they have been read.

        The clock is read before the request, so the offsets are of a later moment. A broker that
        does not answer confirms nothing.
        """
        now_s = self._clock.monotonic_s()
        if self._unread is None and self._liveness.needs_end_offsets(now_s=now_s):
            try:
                self._unread = now_s, self._reader.end_offsets(0.0)
            except KafkaUnavailableError:
                return
        if self._unread is not None:
            requested_s, ends = self._unread
            if self._reader.has_read(ends):
                self._liveness.mark_complete_until(requested_s)
                self._unread = None
