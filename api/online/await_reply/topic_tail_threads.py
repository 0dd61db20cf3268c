"""The topics that an API process follows, in threads: replies to it, capacity, and control."""

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
_AGAIN_S: Final = 0.5
_STOP_S: Final = 2.0  # four polls; a thread that needs longer is left behind


class TopicTailThread:
    """Hands what is appended to a topic from now on to `take`, until stopped.

    A log that does not answer at the start is asked again; one that loses the topic for good ends
    the process by `on_failure`, as any record that cannot be skipped does.
    """

    def __init__(
        self,
        tail: TopicTail,
        name: str,
        take: Callable[[list[Received]], None],
        on_failure: Callable[[MillraceError], None],
    ) -> None:
        """Both callbacks run in the thread; `take` also gets an empty list when nothing came."""
        self._tail, self._take, self._on_failure = tail, take, on_failure
        self._stopping = threading.Event()
        self._stopped_by_s = 0.0
        self._positioned = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_positioned(self) -> bool:
        """Whether nothing that is appended from now on can be missed."""
        return self._positioned.is_set()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def tell_to_stop(self) -> None:
        """Let the thread end, in a moment that begins now."""
        self._stopped_by_s = time.monotonic() + _STOP_S
        self._stopping.set()

    def stop(self) -> None:
        """End the thread, waiting for the rest of its moment: of several, tell all before."""
        if not self._stopping.is_set():
            self.tell_to_stop()
        if self._thread.is_alive():
            self._thread.join(max(0.0, self._stopped_by_s - time.monotonic()))
        if not self._thread.is_alive():
            self._tail.close()

    def _run(self) -> None:
        try:
            self._find_position()
            while not self._stopping.is_set():
                self._take(self._poll())
        except MillraceError as failure:
            self._on_failure(failure)

    def _poll(self) -> list[Received]:
        """Poll; a broker that just came back may not know the topic for a while."""
        until_s = time.monotonic() + MISSING_S_MAX
        while True:
            try:
                return self._tail.poll(_POLL_S)
            except LogRefusedError:  # which is told once
                raise
            except LogUnavailableError:
                if time.monotonic() > until_s or self._stopping.is_set():
                    raise
                time.sleep(_AGAIN_S)

    def _find_position(self) -> None:
        while not self._stopping.is_set():
            try:
                self._tail.skip_to_end(_POSITION_S)
            except LogUnavailableError:
                _LOG.warning("the log does not answer yet")
                time.sleep(_AGAIN_S)
            else:
                self._positioned.set()
                return


class ReplyReader:
    """Decodes what is for this process, and hands over once a poll."""

    def __init__(
        self,
        caller_id: str,
        loop: asyncio.AbstractEventLoop,
        deliver: Callable[[list[Replies]], None],
    ) -> None:
        """`deliver` runs on the loop."""
        self._header = ("caller", caller_id.encode())
        self._loop, self._deliver = loop, deliver

    def take(self, records: list[Received]) -> None:
        """Take in one poll. Records for other callers are told apart by a header, undecoded."""
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
