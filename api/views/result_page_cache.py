"""Cache of pages of results for the streams that are at the same position of the same job.

Streams that are up to date all wait for the newest result, so a hundred of them cost Postgres one
page. A cached page never changes: a sequence number is assigned once.
"""

import asyncio
from typing import Final
from uuid import UUID

from api.runtime.database import Database
from results.views.result_sources import ResultSource
from results.views.sequenced_lines import SequencedRow, read_sequence

PAGE_ROWS: Final = 200
PAGE_BYTES: Final = 256 * 1024
"""Bytes of bodies in a page. One more body may follow, at most as large as a record."""

CACHE_BYTES: Final = 16 * 1024 * 1024

_ROW_BYTES: Final = 500  # approximate size of a row without its body

_Key = tuple[UUID, int]


class ResultPageCache:
    """Reads pages, and caches those that several streams request."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reading: dict[_Key, asyncio.Task[list[SequencedRow]]] = {}
        self._pages: dict[_Key, list[SequencedRow]] = {}  # the oldest first
        self._bytes = 0

    async def read(
        self, source: ResultSource, after: int, limit: int = PAGE_ROWS
    ) -> list[SequencedRow]:
        """Return a page of rows after `after`, perhaps empty. Raises DatabaseUnavailableError."""
        return await self._database.run_for_tenant(
            source.tenant_id,
            read_sequence,
            (source.job_id, source.day),
            after=after,
            limit=min(limit, PAGE_ROWS),
            bytes_max=PAGE_BYTES,
        )

    async def read_shared(self, source: ResultSource, after: int) -> list[SequencedRow]:
        """Return the same page from the cache. Raises DatabaseUnavailableError."""
        key = (source.job_id, after)
        page = self._pages.get(key)
        if page is not None:
            return page
        reading = self._reading.get(key)
        if reading is None:
            reading = self._reading[key] = asyncio.create_task(self.read(source, after))
            reading.add_done_callback(lambda done: self._store(key, done))
        return await asyncio.shield(reading)

    def evict(self, job_id: UUID) -> None:
        """Evict the pages of a job without subscribers."""
        for key in [key for key in self._pages if key[0] == job_id]:
            self._bytes -= _size(self._pages.pop(key))

    def _store(self, key: _Key, done: asyncio.Task[list[SequencedRow]]) -> None:
        del self._reading[key]
        if done.cancelled() or done.exception() is not None or not done.result():
            return
        self._pages[key] = done.result()
        self._bytes += _size(done.result())
        while self._bytes > CACHE_BYTES:
            oldest = next(iter(self._pages))
            self._bytes -= _size(self._pages.pop(oldest))


def _size(page: list[SequencedRow]) -> int:
    return sum(len(row.body or b"") + _ROW_BYTES for _, row in page)
