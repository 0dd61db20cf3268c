"""Transactions from the event loop, in threads that tenants share fairly, and with a time limit.

Work for a tenant runs under row-level security (`storage.postgres.tenant_isolation`): a statement
without a tenant condition finds no rows of other tenants. Work for no tenant, or for many, uses a
method of its own.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any, Concatenate, Final, ParamSpec, TypeAlias, TypeVar
from uuid import UUID

import sqlalchemy as sa

from core.errors import Disposition, MillraceError
from storage.postgres.engines import DATABASE_UNAVAILABLE
from storage.postgres.tenant_isolation import TENANT_ROLE, restrict_to_tenant

P = ParamSpec("P")
T = TypeVar("T")

Owner: TypeAlias = UUID | str
"""A tenant, or the name of a kind of internal work."""


@dataclass(frozen=True, slots=True)
class _Work:
    owner: Owner
    run: Callable[[], Any]
    future: Future[Any]


class FairThreadPool:
    """A thread pool with a queue for each owner. Thread-safe.

    An owner may use half of the threads. Tenants together leave a quarter to internal work, so that
    they cannot delay the look-up of keys. A pool of one thread is shared by all.
    """

    def __init__(self, count: int, name: str) -> None:
        """Up to `count` threads, started as they are needed."""
        self._threads = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._lock = Lock()
        self._idle_count = count
        self._owner_max = max(1, count // 2)
        self._tenants_max = count - min(count - 1, max(1, count // 4))
        self._running: Counter[Owner] = Counter()
        self._tenants_running = 0
        # the owner to serve next is first
        self._queues: OrderedDict[Owner, deque[_Work]] = OrderedDict()

    def submit(self, owner: Owner, run: Callable[[], T]) -> Future[T]:
        """Queue work of an owner. Work whose future is cancelled before it starts never runs."""
        work = _Work(owner, run, Future())
        with self._lock:
            self._queues.setdefault(owner, deque()).append(work)
            next_work = self._start_next()
        if next_work is not None:
            self._threads.submit(self._run, next_work)
        return work.future

    def close(self) -> None:
        """Cancel queued work; do not wait for running work."""
        with self._lock:
            queues, self._queues = self._queues, OrderedDict()
        for queue in queues.values():
            for work in queue:
                work.future.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _run(self, work: _Work | None) -> None:
        """Run work, and then the next work, without returning the thread in between."""
        while work is not None:
            if work.future.set_running_or_notify_cancel():
                try:
                    work.future.set_result(work.run())
                except BaseException as error:  # noqa: BLE001  the future raises it where it is awaited
                    work.future.set_exception(error)
            with self._lock:
                self._release(work.owner)
                work = self._start_next()

    def _start_next(self) -> _Work | None:
        """Reserve a thread for the next owner below its share; None when there is no thread or
        owner.

        Cancelled work does not cost its owner a round.
        """
        if not self._idle_count:
            return None
        while True:
            owner = next((owner for owner in self._queues if self._may_run(owner)), None)
            if owner is None:
                return None
            queue = self._queues[owner]
            while queue and queue[0].future.cancelled():
                queue.popleft()
            if queue:
                break
            del self._queues[owner]
        work = queue.popleft()
        if queue:
            self._queues.move_to_end(owner)
        else:
            del self._queues[owner]
        self._idle_count -= 1
        self._running[owner] += 1
        self._tenants_running += isinstance(owner, UUID)
        return work

    def _release(self, owner: Owner) -> None:
        self._idle_count += 1
        self._running[owner] -= 1
        if not self._running[owner]:
            del self._running[owner]
        self._tenants_running -= isinstance(owner, UUID)

    def _may_run(self, owner: Owner) -> bool:
        exceeds_share = isinstance(owner, UUID) and self._tenants_running >= self._tenants_max
        return self._running[owner] < self._owner_max and not exceeds_share


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

    async def run_for_operators(
        self, work: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return what `work` returns in a transaction that sees every row, for an operator.

        All operators together use half of the threads at most. Raises DatabaseUnavailableError.
        """
        return await self._bounded("operators", lambda c: work(c, *args, **kwargs), self._timeout_s)

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
