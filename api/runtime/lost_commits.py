"""Stops an api process when Postgres has lost commits that the log knows."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from uuid import UUID

import sqlalchemy as sa

from api.runtime.database import Database, DatabaseUnavailableError
from core.clock import Clock
from core.commit_watermark import CHECK_INTERVAL_S, CommitsLostError, CommitWatch, CommitWatermark
from storage.postgres.watermark_row import DatabaseWatermark
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
            lost = await self._database.run_across_tenants(
                find_lost_commits, self._watch, self.log.numbers
            )
            if lost is not None:
                self.has_lost_commits = True
                raise CommitsLostError(number=lost.number, known=lost.lost_above)

    async def run(self) -> None:
        """Check until cancelled. Raises CommitsLostError."""
        while True:
            await self.check()
            await asyncio.sleep(CHECK_INTERVAL_S)


def find_lost_commits(
    connection: sa.Connection, watch: CommitWatch, log: Mapping[UUID, int]
) -> CommitWatermark | None:
    """Return the watermark of a database that lost commits; see `CommitWatch.find_loss`."""
    return watch.find_loss(DatabaseWatermark(connection), log)
