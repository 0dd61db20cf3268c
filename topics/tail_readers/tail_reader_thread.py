"""A thread that polls a topic tail reader and hands each poll to a handler."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from core.errors import RecordUnreadableError
from topics.clients.offset_tracker import Partition
from topics.errors import KafkaAuthorizationError, KafkaUnavailableError
from topics.records.codec import decode, decode_value, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import Record
from topics.tail_readers.topic_tail_reader import TopicTailReader

_LOG = logging.getLogger(__name__)
_POLL_S: Final = 0.5
_SEEK_S_MAX: Final = 10.0
_RETRY_S: Final = 0.5
_STOP_S_MAX: Final = 5.0

R = TypeVar("R", bound=Record)


class TailReaderThread:
    """Polls one `TopicTailReader` in a daemon thread until `stop`, and closes it.

    The first exception, of a poll or of the handler, ends the thread. It is passed to `on_failure`
    and raised by every later `raise_failure`.
    """

    def __init__(  # noqa: PLR0913  each one is an option
        self,
        reader: TopicTailReader,
        handle: Callable[[list[ReceivedRecord]], None],
        *,
        name: str,
        poll_s: float = _POLL_S,
        unavailable_s_max: float = 0.0,
        stop_s_max: float = _STOP_S_MAX,
        on_failure: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        """Create the thread; `start` or `start_at_end` runs it.

        `handle` gets the records of each poll, an empty list after `poll_s` without records. Polls
        are retried for `unavailable_s_max` while Kafka is unavailable. `stop` waits for at most
        `stop_s_max`. Both callbacks run in the thread.
        """
        self._reader, self._handle, self._on_failure = reader, handle, on_failure
        self._poll_s, self._unavailable_s_max = poll_s, unavailable_s_max
        self._stop_s_max, self._stop_at_s = stop_s_max, 0.0
        self._failure: Exception | None = None
        self._stopping, self._caught_up = threading.Event(), threading.Event()
        self._records_before = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_caught_up(self) -> bool:
        """Whether all records appended from now on reach the handler: the position is set."""
        return self._caught_up.is_set()

    @property
    def unreadable_partitions(self) -> frozenset[Partition]:
        """The partitions that cannot be read."""
        return self._reader.unreadable_partitions

    def start(self) -> None:
        """Poll from the reader's position, which the owner has set."""
        self._caught_up.set()
        self._thread.start()

    def start_at_end(self) -> None:
        """Seek to the topic's end in the thread, retrying until Kafka is available, then poll."""
        self._thread.start()

    def start_before_end(self, count: int) -> None:
        """As `start_at_end`, but read those at the last `count` offsets of each partition, too."""
        self._records_before = count
        self._thread.start()

    def raise_failure(self) -> None:
        """Raise the exception that ended the thread, if one did."""
        if self._failure is not None:
            raise self._failure

    def request_stop(self) -> None:
        """Start the time that `stop` waits: call it on several threads before stopping each."""
        self._stop_at_s = time.monotonic() + self._stop_s_max
        self._stopping.set()

    def stop(self) -> None:
        """Wait for the thread to end, for at most `stop_s_max`, and close the reader.

        A thread that needs longer keeps its reader: a client must not be closed while it polls.
        """
        if not self._stopping.is_set():
            self.request_stop()
        if self._thread.is_alive():
            self._thread.join(max(0.0, self._stop_at_s - time.monotonic()))
        if not self._thread.is_alive():
            self._reader.close()

    def _run(self) -> None:
        try:
            self._seek_to_end()
            while not self._stopping.is_set():
                self._handle(self._poll())
        except Exception as failure:  # noqa: BLE001  the thread's loop: see `raise_failure`
            self._failure = failure
            self._on_failure(failure)

    def _seek_to_end(self) -> None:
        while not self._caught_up.is_set() and not self._stopping.is_set():
            try:
                if self._records_before:
                    self._reader.seek_before_end(self._records_before, _SEEK_S_MAX)
                else:
                    self._reader.seek_to_end(_SEEK_S_MAX)
            except KafkaUnavailableError:
                _LOG.warning("the log does not answer yet")
                self._stopping.wait(_RETRY_S)
            else:
                self._caught_up.set()

    def _poll(self) -> list[ReceivedRecord]:
        give_up_at_s = time.monotonic() + self._unavailable_s_max
        while True:
            try:
                return self._reader.poll(self._poll_s)
            except KafkaAuthorizationError:  # raised once; later polls just return nothing
                raise
            except KafkaUnavailableError:
                if time.monotonic() >= give_up_at_s or self._stopping.is_set():
                    raise
                self._stopping.wait(_RETRY_S)


def decode_records(
    kind: type[R], records: Iterable[ReceivedRecord]
) -> Iterator[tuple[ReceivedRecord, R | None]]:
    """Yield each record with its decoded value, None for a tombstone; log and skip unreadable ones.

    Raises SchemaTooNewError.
    """
    usual = kind_headers(kind)
    for record in records:
        if record.value is None:
            yield record, None
            continue
        try:
            if record.headers == usual:  # a start reads millions, and parsing takes longer
                value = decode_value(kind, record.value)
            else:
                value = decode(kind, record.value, record.headers)
        except RecordUnreadableError:
            _LOG.warning(
                "a record is unreadable", extra={"topic": record.topic, "offset": record.offset}
            )
            continue
        yield record, value
