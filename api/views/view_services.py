"""The services that the routes of views share."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from fastapi import Depends, Request

from api.runtime.api_services import Services
from api.runtime.tenant_slots import TenantSlots
from api.views.progress_poller import ProgressPoller
from api.views.result_page_cache import ResultPageCache
from results.views.dispatched_items import DispatchedItems, dispatched_items
from topics.errors import KafkaUnavailableError
from topics.settings import KafkaSettings

_DISPATCHED_S: Final = 1.0
"""Longest age of the snapshot of a pool's batches, which concurrent requests share."""

_LOG_RETRY_S: Final = 10.0  # pause after the log did not answer
_READ_S: Final = 2.0
_POOLS_MAX: Final = 256
_AUDITS_MAX: Final = 2
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
    audits: TenantSlots = field(default_factory=lambda: TenantSlots("audits", _AUDITS_MAX))
    searches: TenantSlots = field(
        default_factory=lambda: TenantSlots("searches", _SEARCHES_MAX, kind="searches of items")
    )
    _snapshots: dict[tuple[str, str], _Snapshot] = field(default_factory=dict)

    async def dispatched_items(self, job: Any) -> dict[int, str]:
        """Return the items of a job that replicas have now; none while the log is unavailable."""
        if self.kafka is None or job.pool is None:
            return {}
        key = (job.pool, job.job_class)
        now_s = time.monotonic()
        snapshot = self._snapshots.get(key)
        if snapshot is None or now_s - snapshot.requested_s > _DISPATCHED_S:
            reading = asyncio.to_thread(dispatched_items, self.kafka, *key, timeout_s=_READ_S)
            snapshot = self._snapshots[key] = _Snapshot(now_s, asyncio.ensure_future(reading))
            if len(self._snapshots) > _POOLS_MAX:
                del self._snapshots[next(iter(self._snapshots))]
        try:
            return (await asyncio.shield(snapshot.dispatched)).get(job.id, {})
        except KafkaUnavailableError:
            snapshot.requested_s = now_s + _LOG_RETRY_S
            return {}


def create_view_services(services: Services, kafka: KafkaSettings | None) -> ViewServices:
    """Return the services of one process; they connect to nothing yet."""
    interval_s = services.settings.follow_interval_s
    return ViewServices(
        services,
        kafka,
        ProgressPoller(services.database, interval_s=interval_s, on_failure=services.on_failure),
        TenantSlots("followers", services.settings.followers_max, kind="streams of results"),
        ResultPageCache(services.database),
    )


def _views_of(request: Request) -> ViewServices:
    views = request.app.state.views
    assert isinstance(views, ViewServices)
    return views


ViewServicesDep = Annotated[ViewServices, Depends(_views_of)]
