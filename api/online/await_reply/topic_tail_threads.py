"""Threads that read the end of a topic: replies to this process, capacity and control records."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from core.errors import MillraceError, RecordUnreadableError
from topics.clients.missing_topics import MISSING_S_MAX
from topics.errors import LogRefusedError, LogUnavailableError
from topics.records.codec import decode
from topics.records.received import Received
from topics.records.records import Replies
from topics.tail_readers.topic_tail import TopicTail

_LOG = logging.getLogger(__name__)

_POLL_S: Final = 0.5
_POSITION_S: Final = 10.0
_RETRY_S: Final = 0.5
_STOP_S: Final = 2.0  # four polls; a thread that needs longer is abandoned


class TopicTailThread:
    """Passes the records that are appended to a topic from now on to a callback.

    At the start it retries while the log does not answer. Later, a topic that stays missing and a
    record that must not be skipped are reported to `on_failure`.
    """

    def __init__(
        self,
        tail: TopicTail,
        name: str,
        on_records: Callable[[list[Received]], None],
        on_failure: Callable[[MillraceError], None],
    ) -> None:
        """Both callbacks run in the thread. `on_records` also gets an empty list after a poll."""
        self._tail, self._on_records, self._on_failure = tail, on_records, on_failure
        self._stopping = threading.Event()
        self._stopped_by_s = 0.0
        self._positioned = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_positioned(self) -> bool:
        """Whether every record that is appended from now on will be read."""
        return self._positioned.is_set()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def request_stop(self) -> None:
        """Tell the thread to stop; `stop` waits for it for 2 s from now."""
        self._stopped_by_s = time.monotonic() + _STOP_S
        self._stopping.set()

    def stop(self) -> None:
        """Stop the thread and wait for it. Call `request_stop` first to stop several at once."""
        if not self._stopping.is_set():
            self.request_stop()
        if self._thread.is_alive():
            self._thread.join(max(0.0, self._stopped_by_s - time.monotonic()))
        if not self._thread.is_alive():
            self._tail.close()

    def _run(self) -> None:
        try:
            self._find_position()
            while not self._stopping.is_set():
                self._on_records(self._poll())
        except MillraceError as failure:
            self._on_failure(failure)

    def _poll(self) -> list[Received]:
        """Poll; retry while a broker that restarted does not know the topic yet."""
        until_s = time.monotonic() + MISSING_S_MAX
        while True:
            try:
                return self._tail.poll(_POLL_S)
            except LogRefusedError:  # librdkafka reports it only once
                raise
            except LogUnavailableError:
                if time.monotonic() > until_s or self._stopping.is_set():
                    raise
                time.sleep(_RETRY_S)

    def _find_position(self) -> None:
        while not self._stopping.is_set():
            try:
                self._tail.skip_to_end(_POSITION_S)
            except LogUnavailableError:
                _LOG.warning("the log does not answer yet")
                time.sleep(_RETRY_S)
            else:
                self._positioned.set()
                return


class ReplyReader:
    """Decodes the replies to this process, and delivers them once a poll."""

    def __init__(
        self,
        caller_id: str,
        loop: asyncio.AbstractEventLoop,
        deliver: Callable[[list[Replies]], None],
    ) -> None:
        """`deliver` runs on the loop."""
        self._header = ("caller", caller_id.encode())
        self._loop, self._deliver = loop, deliver

    def read_records(self, records: list[Received]) -> None:
        """Read the records of one poll. Those of other callers are skipped by a header."""
        ours: list[Replies] = []
        for record in records:
            if self._header not in record.headers:
                continue
            try:
                ours.append(decode(Replies, record.value, record.headers))
            except RecordUnreadableError:
                _LOG.exception("unreadable replies", extra={"offset": record.offset})
        if ours:
            self._loop.call_soon_threadsafe(self._deliver, ours)
