"""Stops an api process when Postgres has lost commits that the log knows."""

import asyncio
from contextlib import suppress

import sqlalchemy as sa

from api.runtime.database import Database, DatabaseUnavailableError
from core.clock import Clock
from core.commit_watermark import CHECK_INTERVAL_S, CommitsLostError, CommitWatch, CommitWatermark
from storage.postgres.commit_watermark import DatabaseWatermark
from topics.tail_readers.commit_watermarks import LogWatermarks


class DatabaseCommitWatch:
    """Compares the watermark of the database with that of the log, once a second."""

    def __init__(self, database: Database, clock: Clock) -> None:
        """Know no watermark; a reader of `control` adds those of the log."""
        self.log = LogWatermarks()
        self.has_lost_commits = False
        self._database = database
        self._watch = CommitWatch(clock)

    async def check(self) -> None:
        """Check once, unless Postgres is unavailable. Raises CommitsLostError."""
        with suppress(DatabaseUnavailableError):
            lost = await self._database.run_across_tenants(self._find_loss)
            if lost is not None:
                self.has_lost_commits = True
                raise CommitsLostError(number=lost.number, known=lost.lost_above)

    async def run(self) -> None:
        """Check until cancelled. Raises CommitsLostError."""
        while True:
            await self.check()
            await asyncio.sleep(CHECK_INTERVAL_S)

    def _find_loss(self, connection: sa.Connection) -> CommitWatermark | None:
        return self._watch.find_loss(DatabaseWatermark(connection), self.log.numbers)
