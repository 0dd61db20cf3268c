"""What the routes of views share: progress of jobs, cached pages, limits of expensive requests."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Final, TypeVar
from uuid import UUID

from fastapi import Depends, Request

from api.runtime.api_services import Services
from api.runtime.database import Database
from api.runtime.tenant_slots import TenantSlots
from api.views.job_estimates import JobEstimates
from api.views.progress_poller import ProgressPoller
from core.clock import Clock
from jobs.estimates.pool_rates import PoolRates
from results.views.dispatched_items import DispatchedItems, dispatched_items
from results.views.result_sources import ResultSource
from results.views.sequenced_lines import SequencedRow, read_sequence
from topics.errors import KafkaUnavailableError
from topics.settings import KafkaSettings

T = TypeVar("T")

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
    return sum(len(row.body or b"") + _ROW_BYTES for _, row, _ in page)


_DISPATCHED_S: Final = 1.0
"""Longest age of the snapshot of a pool's batches, which concurrent requests share."""

_LOG_RETRY_S: Final = 10.0  # pause after the log did not answer
_READ_S: Final = 2.0
_POOLS_MAX: Final = 256
_AUDITS_MAX: Final = 2
_LOG_THREADS: Final = 6
_SEARCHES_MAX: Final = 4


@dataclass(slots=True)
class _Snapshot:
    """The items of a pool's batches at a time."""

    requested_s: float
    dispatched: asyncio.Task[DispatchedItems]


@dataclass(slots=True)
class ViewServices:
    """Progress of jobs, cached pages, and limits of expensive requests."""

    services: Services
    kafka: KafkaSettings | None  # None: this API has no connection to the log
    progress_poller: ProgressPoller
    stream_slots: TenantSlots
    pages: ResultPageCache
    estimates: JobEstimates
    audits: TenantSlots = field(default_factory=lambda: TenantSlots("audits", _AUDITS_MAX))
    searches: TenantSlots = field(
        default_factory=lambda: TenantSlots("searches", _SEARCHES_MAX, kind="searches of items")
    )
    _snapshots: dict[tuple[str, str], _Snapshot] = field(default_factory=dict)
    _log_threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(_LOG_THREADS, "log")
    )

    async def run_log_call(self, call: Callable[[], T]) -> T:
        """Return what `call` returns, in a thread that does not wait for the object store."""
        return await asyncio.get_running_loop().run_in_executor(self._log_threads, call)

    async def dispatched_items(self, job: Any) -> dict[int, str]:
        """Return the items of a job that replicas have now; none while the log is unavailable."""
        if self.kafka is None or job.pool is None:
            return {}
        key = (job.pool, job.job_class)
        now_s = time.monotonic()
        snapshot = self._snapshots.get(key)
        if snapshot is None or now_s - snapshot.requested_s > _DISPATCHED_S:
            reading = self.run_log_call(
                partial(dispatched_items, self.kafka, *key, timeout_s=_READ_S)
            )
            snapshot = self._snapshots[key] = _Snapshot(now_s, asyncio.ensure_future(reading))
            if len(self._snapshots) > _POOLS_MAX:
                del self._snapshots[next(iter(self._snapshots))]
        try:
            return (await asyncio.shield(snapshot.dispatched)).get(job.id, {})
        except KafkaUnavailableError:
            snapshot.requested_s = now_s + _LOG_RETRY_S
            return {}


def create_view_services(
    services: Services,
    kafka: KafkaSettings | None,
    rates: PoolRates,
    clock: Clock,
    predict_start_s: Callable[[str], float | None] = lambda _: None,
) -> ViewServices:
    """Return the services of one process; they connect to nothing yet.

    `predict_start_s` returns the time until a pool without replicas serves, None if not known.
    """
    interval_s = services.settings.follow_interval_s
    return ViewServices(
        services,
        kafka,
        ProgressPoller(services.database, interval_s=interval_s, on_failure=services.on_failure),
        TenantSlots("followers", services.settings.followers_max, kind="streams of results"),
        ResultPageCache(services.database),
        JobEstimates(services.database, rates, clock, predict_start_s),
    )


async def _views_of(request: Request) -> ViewServices:
    views: ViewServices = request.app.state.views
    return views


ViewServicesDep = Annotated[ViewServices, Depends(_views_of)]
