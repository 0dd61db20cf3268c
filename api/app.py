"""The application: routes, error handlers and middleware. Creating it opens no connection."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import sqlalchemy as sa
from fastapi import FastAPI
from starlette.types import ASGIApp

from api import audit_log_routes, model_list_routes
from api.admin import (
    admin_alias_routes,
    admin_list_routes,
    admin_model_check_routes,
    admin_model_key_routes,
    admin_model_routes,
    admin_quarantine_routes,
    admin_share_routes,
    admin_tenant_routes,
)
from api.auth.failed_attempts import FailedAttempts
from api.auth.key_cache import ROUNDS_PER_TTL, KeyCache, refresh_keys
from api.batches import batch_routes, dead_letter_routes, single_request_routes
from api.batches.batch_admission import create_batch_admission
from api.files import file_routes
from api.http import health
from api.http.errors import install_error_handlers
from api.http.middleware import HeadAsGet, RequestEnvelope, WriteDeadline
from api.http.openapi_document import describe
from api.online.asgi_app import OnlineApp
from api.online.memory_limits import LARGE_BYTES, ResponseMemoryLimit
from api.online.online_runtime import OnlineDeps, OnlineRuntime
from api.online.settings import OnlineSettings
from api.runtime.api_services import Services, end_process
from api.runtime.database import Database
from api.runtime.lost_commits import DatabaseCommitWatch
from api.runtime.object_threads import ObjectThreadPool
from api.runtime.tenant_slots import TenantSlots
from api.settings import ApiSettings
from api.views import audit_routes, item_routes, provenance_routes, result_routes
from api.views.view_services import create_view_services
from api.webhooks import delivery_routes, endpoint_routes
from api.webhooks.webhook_services import webhook_services
from core.clock import Clock
from core.runtime.supervised_tasks import supervise
from jobs.estimates.pool_rates import PoolRates
from results.webhooks.settings import WebhookSettings
from storage.objects.object_store import BLOCK_BYTES, ObjectStore
from tenancy.api_keys import working_keys
from tenancy.operator_keys import working_operator_keys

ROUTERS: Final = (
    file_routes.router,
    batch_routes.router,
    dead_letter_routes.router,
    single_request_routes.router,
    model_list_routes.router,
    endpoint_routes.router,
    delivery_routes.router,
    health.router,
    health.metrics_router,
    audit_log_routes.router,
    audit_routes.router,
    item_routes.router,
    provenance_routes.router,
    result_routes.router,
    admin_tenant_routes.router,
    admin_list_routes.router,
    admin_model_check_routes.router,
    admin_model_routes.router,
    admin_alias_routes.router,
    admin_model_key_routes.router,
    admin_share_routes.router,
    admin_quarantine_routes.router,
)
"""All routers. Online calls are not among them: they are served in front of FastAPI."""

_REFRESH_S_MIN: Final = 0.05

_ONLINE_PER_OPEN: Final = 2
"""Online requests that may be in flight for each open call: others may be arriving or responding.
"""


def create_app(  # noqa: PLR0913  one argument for each part of the process
    settings: ApiSettings,
    engine: sa.Engine,
    objects: ObjectStore,
    *,
    database_threads: int,
    clock: Clock,
    online_deps: OnlineDeps | None = None,
    webhooks: WebhookSettings | None = None,
) -> ASGIApp:
    """Return the application. It closes `engine` when it stops.

    Without `online_deps` it serves no online calls; without a key in `webhooks`, no webhook
    secrets.
    """
    online_settings = OnlineSettings() if online_deps is None else online_deps.settings
    database = Database(engine, threads=database_threads, timeout_s=settings.database_timeout_s)
    services = Services(
        settings=settings,
        database=database,
        objects=objects,
        object_threads=ObjectThreadPool(settings.object_threads),
        keys=KeyCache(ttl_s=settings.key_cache_s, clock=clock),
        operator_keys=KeyCache(ttl_s=settings.key_cache_s, clock=clock),
        failed_attempts=FailedAttempts(settings.failed_authentications_per_minute, clock),
        uploads=TenantSlots("uploads", settings.uploads_max, retry_after_s=2),
        response_limit=ResponseMemoryLimit(online_settings.answers_bytes_max),
        commits=DatabaseCommitWatch(database, clock),
        on_failure=end_process if online_deps is None else online_deps.on_failure,
    )
    app = FastAPI(
        title="Millrace",
        docs_url="/docs" if settings.docs else None,
        openapi_url="/openapi.json" if settings.docs else None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect would contain the Host header
        lifespan=_lifespan,
    )
    app.state.services = services
    app.state.probe = health.DatabaseProbe(services.database, clock)
    app.state.webhooks = webhook_services(webhooks or WebhookSettings())
    app.state.online = online = (
        None if online_deps is None else OnlineRuntime(online_deps, services, clock)
    )
    app.state.views = create_view_services(
        services,
        None if online_deps is None else online_deps.kafka,
        PoolRates() if online is None else online.bulk_rates,
        clock,
        (lambda _: None) if online is None else online.wakes.predicted_wait_s,
    )
    app.state.batch_admission = create_batch_admission(online, app.state.views.estimates, settings)
    install_error_handlers(app)
    app.add_middleware(HeadAsGet)
    for router in ROUTERS:
        if router is not health.metrics_router or settings.metrics_port is None:
            # All applications share the routes, which hold no state. `include_router` would build
            # each again, for 50 ms; it adds prefixes, overrides and life cycles, which none has.
            app.router.routes.extend(router.routes)
    describe(app, online=online is not None)
    routed: ASGIApp = app if online is None else OnlineApp(online, app)
    open_calls_max = 0 if online_deps is None else online_settings.open_calls_max
    return RequestEnvelope(
        routed,
        in_flight_max=settings.requests_in_flight_max,
        online_in_flight_max=_ONLINE_PER_OPEN * max(1, open_calls_max),
        write_deadline=WriteDeadline(BLOCK_BYTES, settings.download_idle_timeout_s),
        online_write_deadline=WriteDeadline(LARGE_BYTES, online_settings.slow_reader_s),
        has_access_log=settings.access_log,
    )


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    services: Services = app.state.services
    asyncio.get_running_loop().set_default_executor(services.object_threads)
    every_s = max(services.settings.key_cache_s / ROUNDS_PER_TTL, _REFRESH_S_MIN)
    database = services.database
    background = (
        refresh_keys(services.keys, database, every_s, working_keys),
        refresh_keys(services.operator_keys, database, every_s, working_operator_keys),
        services.commits.run(),
    )
    tasks = [supervise(asyncio.create_task(one), services.on_failure) for one in background]
    online: OnlineRuntime | None = app.state.online
    if online is not None:
        online.start()
    yield
    for task in tasks:
        task.cancel()
    if online is not None:
        await online.stop()
    services.database.close()
