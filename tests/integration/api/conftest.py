"""The API on a real socket, a real Postgres and a folder of objects, with two tenants."""

import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

import httpx
import pytest
import sqlalchemy as sa
from pydantic import SecretStr

from api.app import create_app
from api.server import http_server
from api.settings import ApiSettings
from core.clock import SystemClock
from registry.models import add_model
from storage.local_objects import LocalObjects
from storage.postgres import create_engine
from storage.settings import DatabaseSettings
from tenancy.api_keys import NewKey, create_key
from tenancy.tenants import create_tenant

READY_S_MAX = 20.0


@dataclass(frozen=True)
class Site:
    """A running API and what tests reach around it."""

    url: str
    key: NewKey
    other_key: NewKey
    engine: sa.Engine
    objects: LocalObjects
    objects_root: Path

    def client(self, key: NewKey | None = None, *, timeout_s: float = 20) -> httpx.Client:
        headers = {"authorization": f"Bearer {(key or self.key).secret}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=timeout_s)


OpenSite = Callable[..., Site]


@pytest.fixture
def open_site(database_url: str, tmp_path: Path) -> Iterator[OpenSite]:
    """Start an API with the given settings; it stops with the test."""
    engine = sa.create_engine(database_url)

    def start(*, url: str = database_url, **given: object) -> Site:
        settings = ApiSettings.model_validate({"shutdown_grace_s": 2, **given})
        root = tmp_path / uuid.uuid4().hex
        objects = LocalObjects(root, clock=SystemClock())
        address = stack.enter_context(serve(settings, url, objects))
        with engine.begin() as connection:
            tenants = [create_tenant(connection, uuid.uuid4().hex) for _ in range(2)]
            key, other_key = (create_key(connection, tenant, "test") for tenant in tenants)
            add_model(
                connection,
                "org/small",
                "1",
                pool="small",
                engine="simulated",
                endpoints=("/v1/embeddings",),
            )
        return Site(address, key, other_key, engine, objects, root)

    with ExitStack() as stack:
        yield start
    engine.dispose()


@pytest.fixture
def site(open_site: OpenSite) -> Site:
    """An API with small limits and the default everything else."""
    return open_site(file_bytes_max=1_000_000, stored_bytes_max=5_000_000)


@contextmanager
def serve(settings: ApiSettings, database_url: str, objects: LocalObjects) -> Iterator[str]:
    """Run uvicorn in a thread, as `python -m api` configures it."""
    database = DatabaseSettings(url=SecretStr(database_url))
    app = create_app(
        settings,
        create_engine(database, application_name="test-api"),
        objects,
        database_threads=database.pool_size,
        clock=SystemClock(),
    )
    listener = socket.create_server(("127.0.0.1", 0))
    server = http_server(app, settings)
    thread = threading.Thread(target=server.run, args=([listener],), name="api")
    thread.start()
    deadline = monotonic() + READY_S_MAX
    while not server.started:
        assert thread.is_alive()
        assert monotonic() < deadline
        sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(READY_S_MAX)
        assert not thread.is_alive()
