"""Reads caller heartbeats from `callers` and reports which online calls are still wanted."""

from collections.abc import Callable
from typing import Final

from core.clock import Clock
from topics.errors import KafkaUnavailableError
from topics.records.catalogue import CALLERS
from topics.records.received_record import ReceivedRecord
from topics.records.records import CallerHeartbeat, JobRef
from topics.settings import KafkaSettings
from topics.tail_readers.caller_liveness import CallerLiveness
from topics.tail_readers.tail_reader_thread import TailReaderThread, decode_records
from topics.tail_readers.topic_tail_reader import TopicTailReader

_POLL_S: Final = 0.2
"""Interval of the checks for dead callers while no heartbeat arrives."""


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
        self._reader = TopicTailReader(
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
