"""Goal: the official client manages endpoints unchanged, and tenants are isolated."""

import asyncio
import base64
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from openai import BadRequestError, NotFoundError, OpenAI
from pydantic import SecretStr

from api.settings import ApiSettings
from results.webhooks.delivery.deliverer import Deliverer
from results.webhooks.events.messages import EVENT_TYPES
from results.webhooks.settings import WebhookSettings
from results.webhooks.tables import webhook_endpoints
from tests.integration.api import sites
from tests.integration.api.answers import batch_body, file_id, ok, refused
from tests.integration.results.outcomes import fetch
from tests.integration.webhooks.conftest import (
    URL,
    Site,
    deliver,
    delivering,
    fast_settings,
    new_deliverer,
)
from tests.integration.webhooks.receivers import failing_first, receiving, silent, status
from tests.integration.webhooks.receivers import ok as good

KEY = SecretStr(base64.b64encode(b"k" * 32).decode())
SETTINGS = ApiSettings(shutdown_grace_s=2)
ENDPOINTS = "/v1/webhook_endpoints"
NO_ENDPOINT = "whe_" + "0" * 32
MINE = {"name": "mine", "url": URL, "event_types": ["batch.completed"]}


class Api:
    """A running API with two tenants."""

    def __init__(self, opened: sites.Running) -> None:
        self._api = sites.new_site(opened)
        self.site = Site(opened.engine, self._api.tenant_id)

    def client(self) -> OpenAI:
        key = self._api.key.secret
        return OpenAI(base_url=f"{self._api.url}/v1", api_key=key, max_retries=0)

    def http(self) -> httpx.Client:
        return self._api.client()

    def stranger(self) -> httpx.Client:
        """A client of the other tenant."""
        return self._api.client(self._api.other_key)


@pytest.fixture
def strict(database_url: str, tmp_path: Path) -> Iterator[Api]:
    settings = WebhookSettings(secret_key=KEY, endpoints_max=5)
    with sites.running(SETTINGS, database_url, tmp_path, webhooks=settings) as opened:
        yield Api(opened)


@pytest.fixture
def lenient(database_url: str, tmp_path: Path) -> Iterator[Api]:
    """An API that permits receivers on this machine."""
    settings = fast_settings(secret_key=KEY)
    with sites.running(SETTINGS, database_url, tmp_path, webhooks=settings) as opened:
        yield Api(opened)


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
    shown = (changed.name, changed.event_types, changed.url)
    assert shown == ("renamed", ["batch.expired"], made.url)
    assert rotated.signing_secret != made.signing_secret
    assert [e.id for e in webhooks.list()] == [made.id]
    assert list(webhooks.event_types.list().data) == list(EVENT_TYPES)
    assert webhooks.delete(made.id).deleted
    with pytest.raises(NotFoundError):
        webhooks.retrieve(made.id)


def test_secrets_are_not_in_the_database_and_lists_come_in_pages(strict: Api) -> None:
    webhooks = strict.client().webhooks
    made = [webhooks.create(**MINE) for _ in range(5)]  # type: ignore[arg-type]
    rows = fetch(strict.site.engine, sa.select(webhook_endpoints))

    assert [e.id for e in webhooks.list(limit=2)] == [e.id for e in made[::-1]]
    with pytest.raises(BadRequestError, match="5 endpoints already"):
        webhooks.create(**MINE)  # type: ignore[arg-type]
    for text in (endpoint.signing_secret for endpoint in made):
        secret = base64.b64decode(text.removeprefix("whsec_"))
        assert all(secret not in v for row in rows for v in row if isinstance(v, bytes))
        assert all(text not in v for row in rows for v in row if isinstance(v, str))


WRONG_FIELDS: list[tuple[str, Any]] = [
    ("url", "http://8.8.8.8/"),
    ("url", "https://127.0.0.1/"),
    ("url", "https://[::ffff:8.8.8.8]/"),
    ("url", "https://localhost/"),
    ("url", "https://no-such-host.invalid/"),
    ("url", ""),
    ("name", ""),
    ("name", "a\x00b"),
    ("name", "x" * 257),
    ("event_types", []),
    ("event_types", ["batch.completed", "no.such"]),
]


def test_wrong_fields_are_refused_at_creation_and_at_change(strict: Api) -> None:
    with strict.http() as client:
        path = f"{ENDPOINTS}/{ok(client.post(ENDPOINTS, json=MINE))['id']}"
        for field, value in WRONG_FIELDS:
            for to, body in ((ENDPOINTS, MINE | {field: value}), (path, {field: value})):
                error = refused(client.post(to, json=body), 400)
                assert error["param"] == field
                assert "127.0.0.1" not in str(error["message"])
        assert ok(client.get(path)).items() >= MINE.items()


ROUTES: list[tuple[str, str, Any]] = [
    ("GET", "/{id}", None),
    ("POST", "/{id}", {"name": "stolen"}),
    ("DELETE", "/{id}", None),
    ("POST", "/{id}/rotate_secret", {}),
    ("POST", "/{id}/test", {"event_type": "batch.completed"}),
    ("GET", "/{id}/deliveries", None),
    ("POST", "/{id}/replay", {"since": 0}),
    ("GET", "?after={id}", None),
]


def test_foreign_endpoint_is_not_found(strict: Api) -> None:
    with strict.http() as owner, strict.stranger() as stranger:
        made = ok(owner.post(ENDPOINTS, json=MINE))
        for method, path, body in ROUTES:
            foreign, missing = (
                stranger.request(method, ENDPOINTS + path.format(id=i), json=body)
                for i in (made["id"], NO_ENDPOINT)
            )
            assert foreign.status_code in {400, 404}
            assert foreign.content == missing.content
            assert foreign.status_code == missing.status_code
        assert ok(owner.get(f"{ENDPOINTS}/{made['id']}"))["name"] == "mine"
        assert ok(stranger.get(ENDPOINTS))["data"] == []


INVALID_REPLAYS: list[dict[str, object]] = [
    {},
    {"message_id": "evt_x"},
    {"since": -1},
    {"since": 10**18},
    {"since": "x"},
    {"since": 0, "after": "evt_x"},
    {"since": 0, "after": f"evt_{0:032x}"},
]


def test_invalid_replay_is_refused(strict: Api) -> None:
    with strict.http() as client:
        path = f"{ENDPOINTS}/{ok(client.post(ENDPOINTS, json=MINE))['id']}"
        for body in INVALID_REPLAYS:
            refused(client.post(f"{path}/replay", json=body), 400)

        assert not ok(client.post(path, json={"enabled": False}))["millrace"]["enabled"]
        error = refused(client.post(f"{path}/replay", json={"since": 0}), 400)
        assert error["code"] == "webhook_endpoint_disabled"
        assert ok(client.post(path, json={"enabled": True}))["millrace"]["enabled"]
        assert ok(client.post(f"{path}/replay", json={"since": 0}))["replayed"] == 0


def test_without_a_key_there_are_no_webhooks(database_url: str, tmp_path: Path) -> None:
    none = WebhookSettings()
    with (
        sites.running(SETTINGS, database_url, tmp_path, webhooks=none) as opened,
        Api(opened).http() as client,
    ):
        error = refused(client.post(ENDPOINTS, json=MINE), 400)
        assert error["code"] == "webhooks_unavailable"
        body = batch_body(file_id(client), callback_url="https://8.8.8.8/")
        assert refused(client.post("/v1/batches", json=body), 400)["code"] == error["code"]


async def test_test_delivery_returns_the_response(lenient: Api) -> None:
    webhooks = lenient.client().webhooks

    def trial(url: str) -> Any:
        made = webhooks.create(name="t", url=url, event_types=["batch.completed"])
        return webhooks.test(made.id, event_type="batch.failed")

    deliverer = new_deliverer(lenient.site.engine, fast_settings(timeout_s=3))
    async with delivering(deliverer):
        with receiving(good) as receiver, receiving(status(500)) as bad, receiving(silent) as slow:
            said = await asyncio.to_thread(trial, receiver.url)
            assert (said.status_code, said.success, said.event_type) == (200, True, "batch.failed")
            assert (await asyncio.to_thread(trial, bad.url)).status_code == 500
            with pytest.raises(BadRequestError, match="timed_out"):
                await asyncio.to_thread(trial, slow.url)
    assert len(bad.requests) == 1


async def test_history_and_replay(lenient: Api) -> None:
    site = lenient.site
    with receiving(failing_first(1)) as receiver, lenient.http() as client:
        endpoint, _ = site.endpoint(receiver.url)
        path = f"{ENDPOINTS}/whe_{endpoint.hex}"
        ids = [f"evt_{m.message_id.hex}" for m in site.send(3)]
        await deliver(site, endpoint)
        assert ok(client.post(f"{path}/replay", json={"message_id": ids[0]}))["replayed"] == 1
        await deliver(site, endpoint)
        assert receiver.ids.count(ids[0]) >= 2
        body = {"since": int(time.time()) - 60, "until": int(time.time()) + 60}
        again = ok(client.post(f"{path}/replay", json=body))
        assert (again["replayed"], again["has_more"], again["last_id"]) == (3, False, None)
        await deliver(site, endpoint)
        failed = ok(client.post(f"{path}/replay", json=body | {"failed_only": True}))
        assert failed["replayed"] == 0
        first = ok(client.get(f"{path}/deliveries?limit=2"))
        rest = ok(client.get(f"{path}/deliveries?limit=2&after={first['last_id']}"))
        refused(client.get(f"{path}/deliveries?after=evt_{'0' * 32}"), 400)

    shown = first["data"] + rest["data"]
    assert sorted(d["id"] for d in shown) == sorted(ids)
    assert (first["has_more"], rest["has_more"]) == (True, False)
    assert sum(len(d["attempts"]) for d in shown) == 3 + 1 + 1 + 3
    assert {d["status"] for d in shown} == {"delivered"}


def test_repeated_change_is_applied_once(strict: Api) -> None:
    with strict.http() as client:
        path = f"{ENDPOINTS}/{ok(client.post(ENDPOINTS, json=MINE))['id']}"
        for number, tries in enumerate(["0", "0", "1"]):
            body = {"url": f"https://8.8.8.8/{number % 2}"}
            answer = client.post(path, json=body, headers={"x-stainless-retry-count": tries})
        assert ok(answer)["url"] == ok(client.get(path))["url"] == "https://8.8.8.8/0"
    assert "idempotent-replayed" not in answer.headers


def test_callback_belongs_to_its_job(strict: Api) -> None:
    with strict.http() as client, strict.stranger() as stranger:
        body = batch_body(file_id(client), callback_url="https://8.8.8.8/done")
        batch = ok(client.post("/v1/batches", json=body))
        path = f"/v1/batches/{batch['id']}/callback"
        callback = ok(client.get(path))
        secret = ok(client.post("/v1/webhook_callback_secret/rotate", json={}))["signing_secret"]

        assert callback["url"] == "https://8.8.8.8/done"
        assert callback["millrace"]["batch_id"] == batch["id"]
        assert secret.startswith("whsec_")
        assert ok(client.get(ENDPOINTS))["data"] == []
        refused(stranger.get(path), 404)
        plain = ok(client.post("/v1/batches", json=batch_body(file_id(client))))
        refused(client.get(f"/v1/batches/{plain['id']}/callback"), 404)
        refused(client.post(f"{ENDPOINTS}/{callback['id']}/rotate_secret", json={}), 404)


INVALID_CALLBACKS: list[dict[str, object]] = [
    {"callback_url": "https://10.0.0.1/"},
    {"callback_url": "http://8.8.8.8/"},
    {"callback_url": "https://8.8.8.8/", "callback_events": []},
    {"callback_url": "https://8.8.8.8/", "callback_events": ["x"]},
    {"callback_events": ["batch.completed"]},
]


def test_invalid_callback_creates_no_job(strict: Api) -> None:
    with strict.http() as client:
        for fields in INVALID_CALLBACKS:
            refused(client.post("/v1/batches", json=batch_body(file_id(client), **fields)), 400)
        assert ok(client.get("/v1/batches"))["data"] == []
