"""Routes for operators: liveness, readiness, metrics. They need no key, and show no tenant data."""

import asyncio
import math
from typing import Final

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from api.http.responses import json_response
from api.online.online_runtime import OnlineRuntime
from api.runtime.api_services import services_of
from api.runtime.database import Database
from core.clock import Clock
from core.commit_watermark import CommitsLostError

router = APIRouter(include_in_schema=False)

metrics_router = APIRouter(include_in_schema=False)
"""Served when metrics have no port of their own."""

_PROBE_S_MAX: Final = 2.0
_KEEP_S: Final = 1.0  # how old an answer may be


class DatabaseProbe:
    """Checks whether Postgres can serve tenants; concurrent checks share one query."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database, self._clock = database, clock
        self._asked_s = -math.inf
        self._asking: asyncio.Task[str | None] | None = None

    async def find_problem(self) -> str | None:
        """Return why tenants cannot be served, at most a second old; None when they can."""
        now_s = self._clock.monotonic_s()
        if self._asking is None or (self._asking.done() and now_s - self._asked_s >= _KEEP_S):
            self._asked_s = now_s
            self._asking = asyncio.create_task(self._database.find_problem(_PROBE_S_MAX))
        return await asyncio.shield(self._asking)


@router.get("/healthz")
async def alive() -> Response:
    """Answer while the event loop runs."""
    return json_response({"status": "ok"})


@router.get("/readyz")
async def ready(request: Request) -> Response:
    """Answer 200 while requests can be served; name partitions of the log that are unavailable."""
    if services_of(request).commits.has_lost_commits:
        return json_response({"status": str(CommitsLostError())}, 503, {"retry-after": "2"})
    online: OnlineRuntime | None = request.app.state.online
    names = [] if online is None else online.unavailable_partitions()
    named = {"unavailable_partitions": names} if names else {}
    if online is not None and not online.is_ready:
        return json_response({"status": "log away"} | named, 503, {"retry-after": "2"})
    probe: DatabaseProbe = request.app.state.probe
    find_problem = await probe.find_problem()
    if find_problem is not None:
        return json_response({"status": find_problem} | named, 503, {"retry-after": "2"})
    return json_response({"status": "ok"} | named)


@metrics_router.get("/metrics")
async def prometheus_metrics() -> Response:
    """Return this process's metrics in the Prometheus text format."""
    return Response(generate_latest(), headers={"content-type": CONTENT_TYPE_LATEST})
