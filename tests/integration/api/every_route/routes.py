"""The routes of the application, read from the application."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import sqlalchemy as sa
from fastapi import FastAPI
from fastapi.routing import APIRoute

from api.app import create_app
from api.settings import ApiSettings
from core.clock import SystemClock
from registry.models import ENDPOINTS
from storage.objects.local_object_store import LocalObjectStore

SILENT = {"/v1/admin/pools/{pool}/tenants"}
"""Routes that show what batchers report: they answer 503, as no batcher runs."""


def application() -> FastAPI:
    """The application as it is composed; it is never started."""
    with TemporaryDirectory() as nowhere:
        app: Any = create_app(
            ApiSettings(),
            sa.create_engine("postgresql+psycopg://nowhere"),
            LocalObjectStore(Path(nowhere), clock=SystemClock()),
            database_threads=1,
            clock=SystemClock(),
        )
    assert isinstance(app._app, FastAPI)
    return app._app


def is_for_operators(route: tuple[str, str]) -> bool:
    """Whether a route takes operator keys, and no others."""
    return route[1].startswith("/v1/admin/")


@cache
def served() -> dict[tuple[str, str], APIRoute | None]:
    routes = {
        (method, route.path.replace(":path", "")): route
        for route in application().routes
        if isinstance(route, APIRoute)
        for method in route.methods
    }
    return routes | {("POST", path): None for path in ENDPOINTS}
