"""The API on a real socket, with a real Postgres, a folder of objects and two tenants."""

import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import httpx
import sqlalchemy as sa
from pydantic import SecretStr

from api.app import create_app
from api.http.uvicorn_server import http_server
from api.online.online_runtime import OnlineDeps
from api.settings import ApiSettings
from core.clock import SystemClock
from registry.models import add_model
from results.webhooks.settings import WebhookSettings
from storage.objects.local_object_store import LocalObjectStore
from storage.postgres.engines import create_engine
from storage.postgres.outbox import outbox
from storage.postgres.settings import DatabaseSettings
from tenancy.api_keys import create_key
from tenancy.key_secrets import NewKey
from tenancy.tenants import create_tenant
from tests.support.until import until

READY_S_MAX = 40.0


@dataclass(frozen=True)
class Running:
    """An API and what is behind it."""

    url: str
    engine: sa.Engine
    objects: LocalObjectStore
    objects_root: Path


@dataclass(frozen=True)
class Site:
    """An API with two tenants that have nothing yet; other tests may have their own in it."""

    running: Running
    tenant_id: UUID
    other_tenant_id: UUID
    key: NewKey
    other_key: NewKey
    outbox_before: int  # the last row of earlier tests
    objects_before: frozenset[Path]

    @property
    def url(self) -> str:
        return self.running.url

    @property
    def engine(self) -> sa.Engine:
        return self.running.engine

    @property
    def objects(self) -> LocalObjectStore:
        return self.running.objects

    def client(self, key: NewKey | None = None, *, timeout_s: float = 20) -> httpx.Client:
        headers = {"authorization": f"Bearer {(key or self.key).secret}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=timeout_s)

    def stored(self) -> list[Path]:
        """Every object of this test, complete or not."""
        return sorted(_files_below(self.running.objects_root) - self.objects_before)


OpenSite = Callable[..., Site]


def new_site(opened: Running) -> Site:
    """Add two tenants."""
    with opened.engine.begin() as connection:
        mine, others = (create_tenant(connection, uuid.uuid4().hex) for _ in range(2))
        key, other_key = (create_key(connection, tenant, "test") for tenant in (mine, others))
        last = connection.scalar(sa.select(sa.func.max(outbox.c.id))) or 0
        add_model(
            connection,
            "org/small",
            "1",
            pool="small",
            engine="simulated",
            endpoints=("/v1/embeddings",),
        )
    before = frozenset(_files_below(opened.objects_root))
    return Site(opened, mine, others, key, other_key, last, before)


def _files_below(root: Path) -> set[Path]:
    # Unlike `Path.rglob`, `os.walk` ignores a folder that is removed meanwhile.
    return {Path(folder, name) for folder, _, names in os.walk(root) for name in names}


@contextmanager
def running(
    settings: ApiSettings,
    database_url: str,
    root: Path,
    *,
    api_url: str | None = None,
    setup: OnlineDeps | None = None,
    webhooks: WebhookSettings | None = None,
) -> Iterator[Running]:
    """Run an API; it reaches the database by `api_url` when tests do not."""
    engine = sa.create_engine(database_url)
    objects = LocalObjectStore(root, clock=SystemClock())
    try:
        with serve(settings, api_url or database_url, objects, setup, webhooks) as address:
            yield Running(address, engine, objects, root)
    finally:
        engine.dispose()


@contextmanager
def serve(
    settings: ApiSettings,
    database_url: str,
    objects: LocalObjectStore,
    setup: OnlineDeps | None = None,
    webhooks: WebhookSettings | None = None,
) -> Iterator[str]:
    """Run uvicorn in a thread, as `python -m api` configures it."""
    database = DatabaseSettings(url=SecretStr(database_url))
    app = create_app(
        settings,
        create_engine(database, application_name="test-api"),
        objects,
        database_threads=database.pool_size,
        clock=SystemClock(),
        online_deps=setup,
        webhooks=webhooks,
    )
    listener = socket.create_server(("127.0.0.1", 0))
    server = http_server(app, settings)
    thread = threading.Thread(target=server.run, args=([listener],), name="api")
    thread.start()
    try:
        until(lambda: server.started or not thread.is_alive())
        assert server.started
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(READY_S_MAX)
        assert not thread.is_alive()
