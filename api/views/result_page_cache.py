"""Pages of results, read once for all who are at the same place of the same job.

Followers who have caught up are all at the newest result, so a hundred of them cost Postgres one
page. What is cached never changes: a sequence is given once.
"""

import asyncio
from typing import Final
from uuid import UUID

from api.runtime.database import Database
from results.views.result_sequence import SequencedRow, read_sequence
from results.views.result_sources import ResultSource

PAGE_ROWS: Final = 200
PAGE_BYTES: Final = 256 * 1024
"""Of bodies. One more body may follow, of a record's size at most."""

CACHE_BYTES: Final = 16 * 1024 * 1024

_ROW_BYTES: Final = 500  # what a row takes beside its body, roughly

_Key = tuple[UUID, int]


class ResultPageCache:
    """Reads pages, and remembers those that several want."""

    def __init__(self, database: Database) -> None:
        """Remember nothing yet."""
        self._database = database
        self._reading: dict[_Key, asyncio.Task[list[SequencedRow]]] = {}
        self._pages: dict[_Key, list[SequencedRow]] = {}  # the oldest first
        self._bytes = 0

    async def read(
        self, source: ResultSource, after: int, limit: int = PAGE_ROWS
    ) -> list[SequencedRow]:
        """Return the rows behind `after`: all that are there, or a page. Raises DatabaseAwayError.

        None are there when nothing has come yet.
        """
        return await self._database.run_for_tenant(
            source.tenant_id,
            read_sequence,
            (source.job_id, source.day),
            after=after,
            limit=min(limit, PAGE_ROWS),
            bytes_max=PAGE_BYTES,
        )

    async def shared(self, source: ResultSource, after: int) -> list[SequencedRow]:
        """Return the same, for one of several who follow the job. Raises DatabaseAwayError."""
        key = (source.job_id, after)
        page = self._pages.get(key)
        if page is not None:
            return page
        reading = self._reading.get(key)
        if reading is None:
            reading = self._reading[key] = asyncio.create_task(self.read(source, after))
            reading.add_done_callback(lambda done: self._keep(key, done))
        return await asyncio.shield(reading)

    def forget(self, job_id: UUID) -> None:
        """Let go of a job that nobody follows any more."""
        for key in [key for key in self._pages if key[0] == job_id]:
            self._bytes -= _size(self._pages.pop(key))

    def _keep(self, key: _Key, done: asyncio.Task[list[SequencedRow]]) -> None:
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
