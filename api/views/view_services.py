"""What the routes of views share in one process."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from fastapi import Depends, Request

from api.runtime.background import OnFailure, end_process
from api.runtime.services import Services
from api.runtime.tenant_slots import TenantSlots
from api.views.progress_poller import ProgressPoller
from api.views.result_page_cache import ResultPageCache
from results.views.dispatched_items import Dispatched, dispatched_items
from topics.errors import LogUnavailableError
from topics.settings import KafkaSettings

_DISPATCHED_S: Final = 1.0
"""How old the look at a pool's batches may be: many who ask at once cost one."""

_LOG_AWAY_S: Final = 10.0  # a log that did not answer is not asked again for so long
_LOOK_S: Final = 2.0
_POOLS_MAX: Final = 256
_AUDITS_MAX: Final = 2
_SEARCHES_MAX: Final = 4


@dataclass(slots=True)
class _Look:
    """What a pool's batches held at a moment."""

    asked_s: float
    found: asyncio.Task[Dispatched]


@dataclass(slots=True)
class ViewServices:
    """Followers, pages, and bounds on what is heavy."""

    services: Services
    kafka: KafkaSettings | None  # None: this API does not reach the log
    progress_poller: ProgressPoller
    stream_slots: TenantSlots
    pages: ResultPageCache
    audits: TenantSlots = field(default_factory=lambda: TenantSlots("audits", _AUDITS_MAX))
    searches: TenantSlots = field(
        default_factory=lambda: TenantSlots("searches", _SEARCHES_MAX, kind="searches of items")
    )
    _looks: dict[tuple[str, str], _Look] = field(default_factory=dict)

    async def dispatched(self, job: Any) -> dict[int, str]:
        """Return which items of a job's row replicas have now; none when the log is away."""
        if self.kafka is None or job.pool is None:
            return {}
        key = (job.pool, job.job_class)
        now_s = time.monotonic()
        look = self._looks.get(key)
        if look is None or now_s - look.asked_s > _DISPATCHED_S:
            work = asyncio.to_thread(dispatched_items, self.kafka, *key, timeout_s=_LOOK_S)
            look = self._looks[key] = _Look(now_s, asyncio.ensure_future(work))
            if len(self._looks) > _POOLS_MAX:
                del self._looks[next(iter(self._looks))]
        try:
            return (await asyncio.shield(look.found)).get(job.id, {})
        except LogUnavailableError:
            look.asked_s = now_s + _LOG_AWAY_S
            return {}


def create_view_services(
    services: Services, kafka: KafkaSettings | None, on_failure: OnFailure = end_process
) -> ViewServices:
    """Return the views of one process; it connects to nothing yet."""
    interval_s = services.settings.follow_interval_s
    return ViewServices(
        services,
        kafka,
        ProgressPoller(services.database, interval_s=interval_s, on_failure=on_failure),
        TenantSlots("followers", services.settings.followers_max, kind="streams of results"),
        ResultPageCache(services.database),
    )


def _views_of(request: Request) -> ViewServices:
    views = request.app.state.views
    assert isinstance(views, ViewServices)
    return views


ViewServicesDep = Annotated[ViewServices, Depends(_views_of)]
