"""Goal: the official client manages endpoints unchanged, and tenants are isolated."""

import asyncio
import base64
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from openai import BadRequestError, NotFoundError, OpenAI
from pydantic import SecretStr

from api.app import create_app
from api.http.uvicorn_server import http_server
from api.settings import ApiSettings
from core.clock import SystemClock
from results.webhooks.delivery.deliverer import Deliverer
from results.webhooks.events.messages import EVENT_TYPES
from results.webhooks.settings import WebhookSettings
from results.webhooks.tables import webhook_endpoints
from storage.objects.local_object_store import LocalObjectStore
from storage.postgres.engines import create_engine
from storage.postgres.settings import DatabaseSettings
from tenancy.api_keys import create_key
from tenancy.tenants import create_tenant
from tests.integration.api.answers import batch_body, file_id, ok, refused
from tests.integration.webhooks.conftest import (
    Site,
    delivering,
    fast_settings,
    new_deliverer,
    until,
)
from tests.integration.webhooks.receivers import failing_first, receiving, silent, status
from tests.integration.webhooks.receivers import ok as good

KEY = SecretStr(base64.b64encode(b"k" * 32).decode())
NO_ENDPOINT = "whe_" + "0" * 32
MINE = {"name": "mine", "url": "https://8.8.8.8/hook", "event_types": ["batch.completed"]}


class Api:
    """A running API with two tenants."""

    def __init__(self, url: str, engine: sa.Engine) -> None:
        with engine.begin() as connection:
            tenants = [create_tenant(connection, uuid.uuid4().hex) for _ in range(2)]
            self.keys = [create_key(connection, tenant, "test").secret for tenant in tenants]
        self.url = url
        self.site = Site(engine, tenants[0])

    def client(self, number: int = 0) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key=self.keys[number], max_retries=0)

    def http(self, number: int = 0) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.keys[number]}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=20)


@contextmanager
def running(database: DatabaseSettings, root: Path, webhooks: WebhookSettings) -> Iterator[str]:
    settings = ApiSettings(shutdown_grace_s=2)
    app = create_app(
        settings,
        create_engine(database, application_name="test-api"),
        LocalObjectStore(root, clock=SystemClock()),
        database_threads=4,
        clock=SystemClock(),
        webhooks=webhooks,
    )
    listener = socket.create_server(("127.0.0.1", 0))
    server = http_server(app, settings)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)


@pytest.fixture
def strict(database: DatabaseSettings, engine: sa.Engine, tmp_path: Path) -> Iterator[Api]:
    with running(database, tmp_path, WebhookSettings(secret_key=KEY, endpoints_max=5)) as url:
        yield Api(url, engine)


@pytest.fixture
def lenient(database: DatabaseSettings, engine: sa.Engine, tmp_path: Path) -> Iterator[Api]:
    """An API that permits receivers on this machine."""
    with running(database, tmp_path, fast_settings(secret_key=KEY)) as url:
        yield Api(url, engine)


def deliverer(api: Api, **given: object) -> Deliverer:
    return new_deliverer(api.site.engine, fast_settings(**given))


def test_endpoint_lifecycle_with_the_official_client(strict: Api) -> None:
    webhooks = strict.client().webhooks
    made = webhooks.create(
        name="mine", url="https://8.8.8.8/hook?x=1", event_types=["batch.completed", "batch.failed"]
    )
    found = webhooks.retrieve(made.id)
    changed = webhooks.update(made.id, name="renamed", event_types=["batch.expired"])
    rotated = webhooks.rotate_secret(made.id, keep_old_secret_active_for_24_hours=True)

    assert made.signing_secret.startswith("whsec_")
    assert len(base64.b64decode(made.signing_secret.removeprefix("whsec_"))) == 32
    assert found.signing_secret_hint == made.signing_secret_hint
    assert "signing_secret" not in found.model_fields_set
    assert not hasattr(found, "signing_secret")
    assert (changed.name, changed.event_types, changed.url) == (
        "renamed",
        ["batch.expired"],
        made.url,
    )
    assert rotated.signing_secret != made.signing_secret
    assert [e.id for e in webhooks.list()] == [made.id]
    assert list(webhooks.event_types.list().data) == list(EVENT_TYPES)
    assert webhooks.delete(made.id).deleted
    with pytest.raises(NotFoundError):
        webhooks.retrieve(made.id)


def test_secrets_are_not_in_the_database(strict: Api) -> None:
    made = strict.client().webhooks.create(**MINE)  # type: ignore[arg-type]
    secret = base64.b64decode(made.signing_secret.removeprefix("whsec_"))
    with strict.site.engine.begin() as connection:
        (row,) = connection.execute(sa.select(webhook_endpoints)).all()

    assert all(secret not in v for v in row if isinstance(v, bytes))
    assert all(made.signing_secret not in v for v in row if isinstance(v, str))


def test_lists_come_in_pages(strict: Api) -> None:
    webhooks = strict.client().webhooks
    made = [webhooks.create(**MINE).id for _ in range(5)]  # type: ignore[arg-type]

    assert [e.id for e in webhooks.list(limit=2)] == made[::-1]
    with pytest.raises(BadRequestError, match="5 endpoints already"):
        webhooks.create(**MINE)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("url", "http://8.8.8.8/"),
        ("url", "https://127.0.0.1/"),
        ("url", "https://[::1]/"),
        ("url", "https://[::ffff:8.8.8.8]/"),
        ("url", "https://169.254.169.254/latest/meta-data"),
        ("url", "https://localhost/"),
        ("url", "https://user@8.8.8.8/"),
        ("url", "https://2130706433/"),
        ("url", "https://no-such-host.invalid/"),
        ("url", "https://①②⑦.0.0.1/"),
        ("url", ""),
        ("name", ""),
        ("name", "a\x00b"),
        ("name", "x" * 257),
        ("event_types", []),
        ("event_types", ["batch.completed", "no.such"]),
    ],
)
def test_wrong_fields_are_refused_at_creation_and_at_change(
    strict: Api, field: str, value: Any
) -> None:
    with strict.http() as client:
        made = ok(client.post("/v1/webhook_endpoints", json=MINE))
        for path, body in (
            ("/v1/webhook_endpoints", MINE | {field: value}),
            (f"/v1/webhook_endpoints/{made['id']}", {field: value}),
        ):
            error = refused(client.post(path, json=body), 400)
            assert error["param"] == field
            assert "127.0.0.1" not in str(error["message"])
        assert ok(client.get(f"/v1/webhook_endpoints/{made['id']}"))[field] == MINE[field]


ROUTES = [
    ("GET", "/v1/webhook_endpoints/{id}", None),
    ("POST", "/v1/webhook_endpoints/{id}", {"name": "stolen"}),
    ("DELETE", "/v1/webhook_endpoints/{id}", None),
    ("POST", "/v1/webhook_endpoints/{id}/rotate_secret", {}),
    ("POST", "/v1/webhook_endpoints/{id}/test", {"event_type": "batch.completed"}),
    ("GET", "/v1/webhook_endpoints/{id}/deliveries", None),
    ("POST", "/v1/webhook_endpoints/{id}/replay", {"since": 0}),
    ("GET", "/v1/webhook_endpoints?after={id}", None),
]


@pytest.mark.parametrize(("method", "path", "body"), ROUTES)
def test_foreign_endpoint_is_not_found(
    strict: Api, method: str, path: str, body: dict[str, object] | None
) -> None:
    with strict.http() as owner, strict.http(1) as stranger:
        made = ok(owner.post("/v1/webhook_endpoints", json=MINE))
        foreign, missing = (
            stranger.request(method, path.format(id=i), json=body)
            for i in (made["id"], NO_ENDPOINT)
        )
        assert foreign.status_code in {400, 404}
        assert foreign.content == missing.content
        assert foreign.status_code == missing.status_code
        assert ok(owner.get(f"/v1/webhook_endpoints/{made['id']}"))["name"] == "mine"
        assert ok(stranger.get("/v1/webhook_endpoints"))["data"] == []


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"message_id": "evt_x"},
        {"since": -1},
        {"since": 10**18},
        {"since": "x"},
        {"since": 0, "after": "evt_x"},
        {"since": 0, "after": f"evt_{0:032x}"},
    ],
)
def test_invalid_replay_is_refused(strict: Api, body: dict[str, object]) -> None:
    with strict.http() as client:
        made = ok(client.post("/v1/webhook_endpoints", json=MINE))
        refused(client.post(f"/v1/webhook_endpoints/{made['id']}/replay", json=body), 400)


def test_without_a_key_there_are_no_webhooks(
    database: DatabaseSettings, engine: sa.Engine, tmp_path: Path
) -> None:
    with (
        running(database, tmp_path, WebhookSettings()) as url,
        Api(url, engine).http() as client,
    ):
        error = refused(client.post("/v1/webhook_endpoints", json=MINE), 400)
        assert error["code"] == "webhooks_unavailable"
        body = batch_body(file_id(client), callback_url="https://8.8.8.8/")
        assert refused(client.post("/v1/batches", json=body), 400)["code"] == error["code"]


async def test_test_delivery_returns_the_response(lenient: Api) -> None:
    client = lenient.client()

    def trial(url: str) -> Any:
        made = client.webhooks.create(name="t", url=url, event_types=["batch.completed"])
        return client.webhooks.test(made.id, event_type="batch.failed")

    async with delivering(deliverer(lenient, timeout_s=3)):
        with receiving(good) as receiver, receiving(status(500)) as bad, receiving(silent) as slow:
            said = await until_done(trial, receiver.url)
            assert (said.status_code, said.success, said.event_type) == (200, True, "batch.failed")
            assert (await until_done(trial, bad.url)).status_code == 500
            with pytest.raises(BadRequestError, match="timed_out"):
                await until_done(trial, slow.url)
    assert len(bad.requests) == 1


async def test_history_and_replay(lenient: Api) -> None:
    with receiving(failing_first(1)) as receiver, lenient.http() as client:
        endpoint, _ = lenient.site.endpoint(receiver.url)
        path = f"/v1/webhook_endpoints/whe_{endpoint.hex}"
        messages = lenient.site.send(3)
        ids = [f"evt_{m.message_id.hex}" for m in messages]
        async with delivering(deliverer(lenient)):
            await until(
                lambda: set(lenient.site.states(endpoint)) == {"delivered"}, "first deliveries"
            )
            assert ok(client.post(f"{path}/replay", json={"message_id": ids[0]}))["replayed"] == 1
            await until(lambda: receiver.ids.count(ids[0]) >= 2, "the replay of one")
            await until(
                lambda: set(lenient.site.states(endpoint)) == {"delivered"}, "the replay's end"
            )
            body = {"since": int(time.time()) - 60, "until": int(time.time()) + 60}
            again = ok(client.post(f"{path}/replay", json=body))
            assert (again["replayed"], again["has_more"], again["last_id"]) == (3, False, None)
            await until(
                lambda: set(lenient.site.states(endpoint)) == {"delivered"}, "the replay of all"
            )
            failed = ok(client.post(f"{path}/replay", json=body | {"failed_only": True}))
            assert failed["replayed"] == 0
        first = ok(client.get(f"{path}/deliveries?limit=2"))
        rest = ok(client.get(f"{path}/deliveries?limit=2&after={first['last_id']}"))

    shown = first["data"] + rest["data"]
    assert sorted(d["id"] for d in shown) == sorted(ids)
    assert (first["has_more"], rest["has_more"]) == (True, False)
    assert sum(len(d["attempts"]) for d in shown) == 3 + 1 + 1 + 3
    assert {d["status"] for d in shown} == {"delivered"}
    refused(client_get(lenient, f"{path}/deliveries?after=evt_{'0' * 32}"), 400)


def test_repeated_change_is_applied_once(strict: Api) -> None:
    with strict.http() as client:
        path = f"/v1/webhook_endpoints/{ok(client.post('/v1/webhook_endpoints', json=MINE))['id']}"
        for number, tries in enumerate(["0", "0", "1"]):
            body = {"url": f"https://8.8.8.8/{number % 2}"}
            answer = client.post(path, json=body, headers={"x-stainless-retry-count": tries})
        assert ok(answer)["url"] == ok(client.get(path))["url"] == "https://8.8.8.8/0"
    assert "idempotent-replayed" not in answer.headers


def test_replay_to_a_disabled_endpoint_is_refused(strict: Api) -> None:
    with strict.http() as client:
        made = ok(client.post("/v1/webhook_endpoints", json=MINE))
        path = f"/v1/webhook_endpoints/{made['id']}"
        assert not ok(client.post(path, json={"enabled": False}))["millrace"]["enabled"]
        error = refused(client.post(f"{path}/replay", json={"since": 0}), 400)
        assert error["code"] == "webhook_endpoint_disabled"
        assert ok(client.post(path, json={"enabled": True}))["millrace"]["enabled"]
        assert ok(client.post(f"{path}/replay", json={"since": 0}))["replayed"] == 0


def test_callback_belongs_to_its_job(strict: Api) -> None:
    with strict.http() as client, strict.http(1) as stranger:
        body = batch_body(file_id(client), callback_url="https://8.8.8.8/done")
        batch = ok(client.post("/v1/batches", json=body))
        path = f"/v1/batches/{batch['id']}/callback"
        callback = ok(client.get(path))
        secret = ok(client.post("/v1/webhook_callback_secret/rotate", json={}))["signing_secret"]

        assert callback["url"] == "https://8.8.8.8/done"
        assert callback["millrace"]["batch_id"] == batch["id"]
        assert secret.startswith("whsec_")
        assert ok(client.get("/v1/webhook_endpoints"))["data"] == []
        refused(stranger.get(path), 404)
        plain = ok(client.post("/v1/batches", json=batch_body(file_id(client))))
        refused(client.get(f"/v1/batches/{plain['id']}/callback"), 404)
        refused(client.post(f"/v1/webhook_endpoints/{callback['id']}/rotate_secret", json={}), 404)


@pytest.mark.parametrize(
    "fields",
    [
        {"callback_url": "https://10.0.0.1/"},
        {"callback_url": "http://8.8.8.8/"},
        {"callback_url": "https://8.8.8.8/", "callback_events": []},
        {"callback_url": "https://8.8.8.8/", "callback_events": ["x"]},
        {"callback_events": ["batch.completed"]},
    ],
)
def test_invalid_callback_creates_no_job(strict: Api, fields: dict[str, object]) -> None:
    with strict.http() as client:
        refused(client.post("/v1/batches", json=batch_body(file_id(client), **fields)), 400)
        assert ok(client.get("/v1/batches"))["data"] == []


async def until_done(work: Any, argument: str) -> Any:
    """Run a blocking call while deliveries continue."""

    return await asyncio.to_thread(work, argument)


def client_get(api: Api, path: str) -> httpx.Response:
    with api.http() as client:
        return client.get(path)
