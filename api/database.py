"""Transactions from the event loop: each runs in a thread, and none is waited for too long."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Concatenate, Final, ParamSpec, TypeVar

import sqlalchemy as sa

from core.errors import Disposition, MillraceError
from storage.postgres import DATABASE_AWAY

P = ParamSpec("P")
T = TypeVar("T")

PROBE: Final = sa.text("SELECT 1")


class DatabaseAwayError(MillraceError):
    """Postgres does not answer; what was asked for may or may not have happened."""

    code = "database_away"
    disposition = Disposition.RETRY


class Database:
    """Runs functions of a connection, so that the same ones serve processes without a loop."""

    def __init__(self, engine: sa.Engine, *, threads: int, timeout_s: float) -> None:
        """`threads` is the size of the engine's pool: more would only wait for it."""
        self._engine = engine
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="postgres")
        self._timeout_s = timeout_s

    async def run(
        self, work: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return what `work` returns in a transaction of its own. Raises DatabaseAwayError.

        Work that has not begun when time is up never does; Postgres' own limits end what has.
        """
        return await self._bounded(lambda c: work(c, *args, **kwargs), self._timeout_s)

    async def answers_within(self, timeout_s: float) -> bool:
        """Whether Postgres does."""
        try:
            await self._bounded(lambda connection: connection.scalar(PROBE), timeout_s)
        except DatabaseAwayError:
            return False
        return True

    def close(self) -> None:
        """Give the connections back; do not wait for what hangs."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._engine.dispose()

    async def _bounded(self, work: Callable[[sa.Connection], T], timeout_s: float) -> T:
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._threads, self._transaction, work)
        try:
            async with asyncio.timeout(timeout_s):
                return await running
        except TimeoutError:
            raise DatabaseAwayError from None

    def _transaction(self, work: Callable[[sa.Connection], T]) -> T:
        try:
            with self._engine.begin() as connection:
                return work(connection)
        except DATABASE_AWAY as error:
            raise DatabaseAwayError from error
