"""Following a topic in a thread: what it brings is handed on, what ends it is not forgotten."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from core.errors import RecordUnreadableError
from topics.records.codec import decode
from topics.records.received_record import ReceivedRecord
from topics.records.records import Record
from topics.tail_readers.topic_tail_reader import TopicTailReader

_LOG = logging.getLogger(__name__)
_POLL_S: Final = 0.5
_STOP_S_MAX: Final = 5.0

R = TypeVar("R", bound=Record)


class TailReaderThread:
    """A tail and the thread that polls it. The owner positions the tail, then starts."""

    def __init__(
        self,
        tail: TopicTailReader,
        take: Callable[[list[ReceivedRecord]], None],
        *,
        name: str,
        poll_s: float = _POLL_S,
    ) -> None:
        """`take` is called in the thread, with nothing after `poll_s` without records.

        What it raises ends the following.
        """
        self._tail, self._take, self._poll_s = tail, take, poll_s
        self._failure: Exception | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=name, daemon=True)

    def start(self) -> None:
        """Begin where the tail stands."""
        self._thread.start()

    def raise_failure(self) -> None:
        """Raises what ended the following: whoever lives by the news must not go on without."""
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Stop following and close the tail."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_S_MAX)
        self._tail.close()

    def _follow(self) -> None:
        try:
            while not self._stopping.is_set():
                self._take(self._tail.poll(self._poll_s))
        except Exception as failure:  # noqa: BLE001  the process loop: told by `check`
            self._failure = failure


def decode_records(
    kind: type[R], records: Iterable[ReceivedRecord]
) -> Iterator[tuple[ReceivedRecord, R | None]]:
    """Yield each record with what it says, None for a tombstone; unreadable ones are left out.

    Raises SchemaTooNewError.
    """
    for record in records:
        if record.value is None:
            yield record, None
            continue
        try:
            said = decode(kind, record.value, record.headers)
        except RecordUnreadableError:
            _LOG.warning(
                "a record is unreadable", extra={"topic": record.topic, "offset": record.offset}
            )
            continue
        yield record, said
