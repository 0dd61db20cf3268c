"""Which online calls somebody still waits for, as API replicas tell on `callers`."""

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
"""Where nobody says anything a death is looked for so often."""


class CallerHeartbeatReader:
    """Follows `callers` in a thread, from now on."""

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        client_id: str,
        clock: Clock,
        on_news: Callable[[CallerHeartbeat], None] = lambda _: None,
    ) -> None:
        """`on_news` is called in the thread, after the news are known here."""
        self._tail = TopicTailReader(
            settings, CALLERS, client_id=f"{client_id}-callers", reset_to_earliest=False
        )
        self._clock, self._on_news = clock, on_news
        self._known = CallerLiveness(since_s=clock.monotonic_s())
        self._asked: tuple[float, dict[int, int]] | None = None  # ends that are not reached yet
        self._following = TailReaderThread(
            self._tail, self._apply, name="callers-tail", poll_s=_POLL_S
        )

    def start(self, timeout_s: float) -> None:
        """Follow from the present end. Raises KafkaUnavailableError."""
        self._tail.seek_to_end(timeout_s)
        self._known = CallerLiveness(since_s=self._clock.monotonic_s())
        self._following.start()

    def is_abandoned(self, job: JobRef, *, since_s: float) -> bool:
        """Whether nobody waits for an online request, or its deadline is past.

        It is here since monotonic time `since_s`. Raises what ended the following: without news
        the process must not go on.
        """
        self._following.raise_failure()
        if job.call is None:
            return False
        now_s = self._clock.monotonic_s()
        is_gone = self._known.is_abandoned(job, since_s=since_s, now_s=now_s)
        return is_gone or self._known.is_expired(job, now_s=now_s)

    def is_expired(self, job: JobRef) -> bool:
        """Whether an online request's deadline is past, as far as its caller's clock is known."""
        return self._known.is_expired(job, now_s=self._clock.monotonic_s())

    def start_wait_left_s(self, job: JobRef) -> float | None:
        """Return how long an online request may still wait until it begins; None without a bound.

        Nor is there one while its caller's clock is unknown.
        """
        return self._known.start_wait_left_s(job, now_s=self._clock.monotonic_s())

    def is_obsolete(self, job: JobRef, *, since_s: float) -> bool:
        """Whether an online request that has not begun need not be passed on.

        Of a durable one that waited too long a replica has to say so: its row must end.
        """
        if self.is_abandoned(job, since_s=since_s):
            return True
        if job.call is None or job.call.durable:
            return False
        patience_s = self.start_wait_left_s(job)
        return patience_s is not None and patience_s <= 0

    def is_silent(self, caller_id: str) -> bool:
        """Whether nothing was heard of the caller lately: it is dead, or its news are late."""
        return self._known.is_silent(caller_id, now_s=self._clock.monotonic_s())

    def is_dead(self, caller_id: str, *, since_s: float) -> bool:
        """Whether the caller of a request that is here since is known to have said nothing."""
        return self._known.is_dead(caller_id, since_s=since_s, now_s=self._clock.monotonic_s())

    def stop(self) -> None:
        """Stop following."""
        self._following.stop()

    def _apply(self, records: list[ReceivedRecord]) -> None:
        now_s = self._clock.monotonic_s()
        for _, news in decode_records(CallerHeartbeat, records):
            if news is not None:
                self._known.record_heartbeat(news, now_s=now_s)
                self._on_news(news)
        self._known.evict_stale(now_s=now_s)
        self._prove()

    def _prove(self) -> None:
        """Where somebody is silent, learn until when all news are known: ask for the end, read on.

        The clock is read before the question: the answer is of a later moment. A log that does not
        answer proves nothing.
        """
        now_s = self._clock.monotonic_s()
        if self._asked is None and self._known.needs_end_offsets(now_s=now_s):
            try:
                self._asked = now_s, self._tail.end_offsets(0.0)
            except KafkaUnavailableError:
                return
        if self._asked is not None:
            asked_s, ends = self._asked
            if self._tail.has_read(ends):
                self._known.mark_complete_until(asked_s)
                self._asked = None
