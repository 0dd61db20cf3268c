"""Reads deferred records again while their tenants have less than their quota of the buffer."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from batcher.inbound.record_handler import RecordHandler
from batcher.queueing.deferred_records import DeferredRecord
from batcher.queueing.queues import Queues
from core.runtime.futures import run_in_daemon_thread
from topics.errors import KafkaUnavailableError
from topics.records.received_record import ReceivedRecord

_LOG = logging.getLogger(__name__)

RECORDS_MAX: Final = 64
"""Records of one fetch: 16 MiB at most."""

FETCH_S_MAX: Final = 10.0
_PAUSE_S: Final = 0.02
_RETRY_S: Final = 1.0


class FetchRecords(Protocol):
    """Reads records by partition and offset; blocks. Raises KafkaUnavailableError."""

    def __call__(
        self, wanted: Mapping[int, Collection[int]], timeout_s: float, /
    ) -> dict[tuple[int, int], ReceivedRecord]:
        """Return the records that are on the log, by partition and offset."""
        ...


class DeferredReads:
    """The loop that reads deferred records; runs on the event loop."""

    def __init__(self, queues: Queues, handler: RecordHandler, fetch: FetchRecords) -> None:
        """`fetch` is called from a thread, one call at a time."""
        self._queues, self._handler, self._fetch = queues, handler, fetch

    async def run(self, on_queued: Callable[[], None]) -> None:
        """Read until cancelled; `on_queued` is called when chunks were queued."""
        while True:
            await self._handler.deferred_arrived.wait()
            if not len(self._queues.deferred):
                self._handler.deferred_arrived.clear()
                continue
            await asyncio.sleep(_PAUSE_S)
            try:
                if await self.read_once():
                    on_queued()
            except KafkaUnavailableError:
                _LOG.warning("deferred records cannot be read: the broker is unavailable")
                await asyncio.sleep(_RETRY_S)

    async def read_once(self) -> int:
        """Read what the quotas allow now; return how many records were handled.

        Raises KafkaUnavailableError; the records are deferred again then.
        """
        taken = self._queues.take_deferred(RECORDS_MAX)
        if not taken:
            return 0
        wanted: defaultdict[int, list[int]] = defaultdict(list)
        for record in taken:
            wanted[record.ticket.partition[1]].append(record.offset)
        try:
            found = await run_in_daemon_thread(
                lambda: self._fetch(wanted, FETCH_S_MAX), name="batcher-deferred"
            )
        except KafkaUnavailableError:
            self._defer_again(taken)
            raise
        for record in taken:
            self._handler.handle_deferred(
                record, found.get((record.ticket.partition[1], record.offset))
            )
        return len(taken)

    def _defer_again(self, taken: list[DeferredRecord]) -> None:
        for record in taken:
            self._queues.release(record)
        self._queues.deferred.defer_again([r for r in taken if not r.ticket.is_dropped])
