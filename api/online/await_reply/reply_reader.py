"""Decodes the records of the topic `replies` that are for this process."""

import asyncio
import logging
from collections.abc import Callable

from core.errors import RecordUnreadableError
from topics.records.codec import decode
from topics.records.received_record import ReceivedRecord
from topics.records.records import Replies

_LOG = logging.getLogger(__name__)


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

    def read_records(self, records: list[ReceivedRecord]) -> None:
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
