"""Transactions from the event loop, in threads and with a time limit.

Work for a tenant runs under row-level security (`storage.postgres.tenant_isolation`): a statement
without a tenant condition finds no rows of other tenants. Work for no tenant, or for many, uses a
method of its own.
"""

import asyncio
from collections.abc import Callable
from typing import Concatenate, Final, ParamSpec, TypeVar
from uuid import UUID

import sqlalchemy as sa

from api.runtime.fair_thread_pool import FairThreadPool, Owner
from core.errors import Disposition, MillraceError
from storage.postgres.engines import DATABASE_UNAVAILABLE
from storage.postgres.tenant_isolation import TENANT_ROLE, restrict_to_tenant

P = ParamSpec("P")
T = TypeVar("T")

_NO_TENANT: Final = UUID(int=0)


class DatabaseUnavailableError(MillraceError):
    """Postgres does not answer. The transaction may or may not have been committed."""

    code = "database_away"
    disposition = Disposition.RETRY


class Database:
    """Runs functions that take a connection, which processes without an event loop use as well."""

    def __init__(self, engine: sa.Engine, *, threads: int, timeout_s: float) -> None:
        """`threads` is the size of the engine's pool: more would only wait for connections."""
        self._engine = engine
        self._threads = FairThreadPool(threads, "postgres")
        self._timeout_s = timeout_s
        self._is_closed = False

    async def run_for_tenant(
        self,
        tenant_id: UUID,
        work: Callable[Concatenate[sa.Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Return what `work` returns in a transaction that sees the rows of one tenant.

        Tenants share the threads fairly. Work that has not started within the time limit never
        starts; Postgres' own timeouts end work that has. Raises DatabaseUnavailableError.
        """

        def isolated(connection: sa.Connection) -> T:
            restrict_to_tenant(connection, tenant_id)
            return work(connection, *args, **kwargs)

        return await self._bounded(tenant_id, isolated, self._timeout_s)

    async def run_across_tenants(
        self, work: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return what `work` returns in a transaction that sees every row.

        Each function counts as an owner of its own among the threads, which keep some for such
        work. Raises DatabaseUnavailableError.
        """
        kind = getattr(work, "__name__", "other")
        return await self._bounded(kind, lambda c: work(c, *args, **kwargs), self._timeout_s)

    async def find_problem(self, timeout_s: float) -> str | None:
        """Return why no tenant can be served now, for operators; None when they can."""
        try:
            await self._bounded("probe", lambda c: restrict_to_tenant(c, _NO_TENANT), timeout_s)
        except DatabaseUnavailableError:
            return "database away"
        except sa.exc.DBAPIError:  # not permitted (42501), or no such role (22023)
            return f"role {TENANT_ROLE} is missing, or not ours to take"
        return None

    def close(self) -> None:
        """Close the connections without waiting for hanging work."""
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
        except DATABASE_UNAVAILABLE as error:
            raise DatabaseUnavailableError from error
        finally:
            if self._is_closed:
                pool.dispose()  # otherwise the returned connection would stay open
