"""Goal: metrics that have a port of their own are not served beside the routes of clients."""

from typing import Any, cast

import httpx

from api.app import create_app
from api.settings import ApiSettings
from core.clock import SystemClock
from tests.support.memory_objects import MemoryStore


async def test_the_path_is_gone_once_metrics_have_a_port() -> None:
    # Both at once: applications share the routes, and each has its own list of them.
    apps = {
        port: create_app(
            ApiSettings(metrics_port=port),
            cast("Any", None),
            MemoryStore(),
            database_threads=1,
            clock=SystemClock(),
        )
        for port in (9100, None)
    }
    for port, status in ((None, 200), (9100, 404)):
        transport = httpx.ASGITransport(app=cast("Any", apps[port]))
        async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
            assert (await client.get("/metrics")).status_code == status
            assert (await client.get("/healthz")).status_code == 200
