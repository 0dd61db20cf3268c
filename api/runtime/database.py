"""Transactions from the event loop: each runs in a thread, and none is waited for too long.

Work for a tenant runs behind row-level security (`storage.postgres.tenant_isolation`): a statement
that forgets its tenant finds no rows of others. Work for no tenant, or for many at once, says so.
"""

import asyncio
from collections.abc import Callable
from typing import Concatenate, Final, ParamSpec, TypeVar
from uuid import UUID

import sqlalchemy as sa

from api.runtime.fair_thread_pool import FairThreadPool, Owner
from core.errors import Disposition, MillraceError
from storage.postgres.engines import DATABASE_AWAY
from storage.postgres.tenant_isolation import TENANT_ROLE, wall_off

P = ParamSpec("P")
T = TypeVar("T")

_NOBODY: Final = UUID(int=0)


class DatabaseUnavailableError(MillraceError):
    """Postgres does not answer; what was asked for may or may not have happened."""

    code = "database_away"
    disposition = Disposition.RETRY


class Database:
    """Runs functions of a connection, so that the same ones serve processes without a loop."""

    def __init__(self, engine: sa.Engine, *, threads: int, timeout_s: float) -> None:
        """`threads` is the size of the engine's pool: more would only wait for it."""
        self._engine = engine
        self._threads = FairThreadPool(threads, "postgres")
        self._timeout_s = timeout_s
        self._is_closed = False

    async def run_for(
        self,
        tenant_id: UUID,
        work: Callable[Concatenate[sa.Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Return what `work` returns in a transaction of its own, which sees this tenant's rows.

        Tenants take turns. Work that has not begun when time is up never does; Postgres' own
        limits end what has. Raises DatabaseUnavailableError.
        """

        def walled_off(connection: sa.Connection) -> T:
            wall_off(connection, tenant_id)
            return work(connection, *args, **kwargs)

        return await self._bounded(tenant_id, walled_off, self._timeout_s)

    async def run_across_tenants(
        self, work: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return the same of a transaction that sees every row: for what acts for no tenant.

        Each kind of it has turns of its own, and threads that tenants leave to it.
        """
        kind = getattr(work, "__name__", "other")
        return await self._bounded(kind, lambda c: work(c, *args, **kwargs), self._timeout_s)

    async def hindrance(self, timeout_s: float) -> str | None:
        """Return why nothing can be done for a tenant now, for operators; None when it can."""
        try:
            await self._bounded("probe", lambda c: wall_off(c, _NOBODY), timeout_s)
        except DatabaseUnavailableError:
            return "database away"
        except sa.exc.DBAPIError:  # refused (42501), or no such role (22023)
            return f"role {TENANT_ROLE} is missing, or not ours to take"
        return None

    def close(self) -> None:
        """Give the connections back; do not wait for what hangs."""
        self._is_closed = True
        self._threads.close()
        self._engine.dispose()

    async def _bounded(
        self, owner: Owner, work: Callable[[sa.Connection], T], timeout_s: float
    ) -> T:
        running = self._threads.submit(owner, lambda: self._transaction(work))
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.wrap_future(running)
        except TimeoutError:
            raise DatabaseUnavailableError from None

    def _transaction(self, work: Callable[[sa.Connection], T]) -> T:
        pool = self._engine.pool
        try:
            with self._engine.begin() as connection:
                return work(connection)
        except DATABASE_AWAY as error:
            raise DatabaseUnavailableError from error
        finally:
            if self._is_closed:
                pool.dispose()  # else the connection that just came back would stay open
