"""Goal: every POST honours an Idempotency-Key, and a retry receives a lost secret again.

The routes come from the application itself: a new one that ignores the key fails here.
"""

import base64
import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID, uuid4

import httpx
import msgspec
import pytest
import sqlalchemy as sa

from jobs.store.idempotency import (
    IdempotencyClaim,
    KeyScope,
    StoredAnswer,
    mark_in_flight,
    save_answer,
)
from jobs.tables.idempotency import idempotency_keys
from registry.models import ENDPOINTS, add_model
from results.webhooks.endpoints.signing_secrets import SecretCipher
from results.webhooks.tables import webhook_attempts, webhook_deliveries
from tests.integration.api.answers import batch_body, is_replay, ok, refused
from tests.integration.api.every_route.asks import ASKS, NEW_ENDPOINT, PLAIN, Ask
from tests.integration.api.every_route.routes import is_for_operators, served
from tests.integration.api.every_route.worlds import Two, World, add_world, with_new_tenant
from tests.integration.api.sites import Site
from tests.support.until import until

pytestmark = pytest.mark.timeout(180)  # the first test starts the whole API

POSTS = sorted(route[1] for route in served() if route[0] == "POST" and not is_for_operators(route))
"""Those of operators are in `test_operator_routes.py`."""
FILE = {"file": ("in.jsonl", b"{}")}
SECRET = b"s" * 32
IS_HELD = idempotency_keys.c.state == "in_flight"
NEEDS_A_ROLE = {*ENDPOINTS, "/v1/webhook_endpoints/{endpoint_id}/test"}
"""They have tests of their own, with somebody who answers."""
CREATE, CALLBACKS = "/v1/webhook_endpoints", "/v1/webhook_callback_secret/rotate"
CHANGE, ROTATE = (
    "/v1/webhook_endpoints/{endpoint}",
    "/v1/webhook_endpoints/{endpoint}/rotate_secret",
)


@pytest.fixture(scope="module")
def home(two: Two) -> Site:
    """A tenant of these tests alone, and a model that takes every call."""
    with two.site.engine.begin() as connection:
        add_model(connection, "org/all", "1", pool="small", engine="simulated", endpoints=ENDPOINTS)
    return with_new_tenant(two.site)


@pytest.fixture(scope="module")
def world(home: Site) -> World:
    return add_world(home, home.key)


@pytest.fixture
def client(home: Site) -> Iterator[httpx.Client]:
    with home.client() as client:
        yield client


@pytest.mark.parametrize("path", POSTS)
def test_every_post_reads_the_key(
    home: Site, world: World, client: httpx.Client, path: str
) -> None:
    asked, elsewhere = (request(client, world, path, uuid4().hex) for _ in range(2))
    with home.engine.begin() as connection:
        mark_in_flight(connection, claim_of(home, asked, f"POST {asked.url.path}"), until_s=60.0)
        mark_in_flight(connection, claim_of(home, elsewhere, "POST /v1/elsewhere"), until_s=60.0)
        connection.execute(sa.update(idempotency_keys).values(body_sha256=None).where(IS_HELD))
    assert refused(client.send(asked), 409)["code"] == "idempotency_key_in_flight"
    assert refused(client.send(elsewhere), 422)["code"] == "idempotency_key_reused"


def test_every_post_is_executed_once(world: World, client: httpx.Client) -> None:
    """In the order of ASKS, in which what ends something comes last."""
    for method, path in ASKS:
        if method != "POST" or path in NEEDS_A_ROLE:
            continue
        first, second = (client.send(request(client, world, path, f"once {path}")) for _ in "12")
        assert ok(first) == ok(second), path
        assert (is_replay(first), is_replay(second)) == (False, True), path


@pytest.mark.parametrize("key", ["", "x" * 256, "a\tb"], ids=["none", "long", "control"])
@pytest.mark.parametrize("path", POSTS)
def test_every_post_refuses_an_invalid_key(
    world: World, client: httpx.Client, path: str, key: str
) -> None:
    answer = client.send(request(client, world, path, key))
    assert refused(answer, 400)["code"] == "idempotency_key_invalid"


def test_a_secret_is_replayed_and_stored_in_no_table(
    home: Site, world: World, client: httpx.Client
) -> None:
    bodies: dict[str, dict[str, object]] = {
        CREATE: {**NEW_ENDPOINT},
        ROTATE.format(endpoint=world.ids["endpoint"]): {},
        CALLBACKS: {},
    }
    before = ok(client.get(CREATE))["data"]
    for path, body in bodies.items():
        first, second, other = (
            client.post(path, json=body, headers={"idempotency-key": key})
            for key in (f"1 {path}", f"1 {path}", f"2 {path}")
        )
        shown = ok(first)
        assert (second.content, is_replay(first), is_replay(second)) == (first.content, False, True)
        assert ok(other)["signing_secret"] != shown["signing_secret"]
        changed = {**body, "keep_old_secret_active_for_24_hours": True, "name": "other"}
        refused(client.post(path, json=changed, headers={"idempotency-key": f"1 {path}"}), 422)
        assert again(client, path, body) == shown  # also when it was replaced meanwhile

        secret = shown["signing_secret"]
        raw = base64.b64decode(secret.removeprefix("whsec_"))
        with home.engine.connect() as connection:
            rows = connection.execute(sa.select(idempotency_keys.c.body)).scalars().all()
        assert not any(secret.encode() in (b or b"") or raw in (b or b"") for b in rows)
    assert len(ok(client.get(CREATE))["data"]) == len(before) + 2


def again(client: httpx.Client, path: str, body: dict[str, object]) -> object:
    return ok(client.post(path, json=body, headers={"idempotency-key": f"1 {path}"}))


def test_a_secret_without_its_encryption_key_is_gone(
    home: Site, world: World, client: httpx.Client
) -> None:
    asked = request(client, world, CREATE, uuid4().hex)
    plant(home, asked, b"o" * 32)
    assert refused(client.send(asked), 410)["code"] == "answer_gone"


def test_a_replay_does_not_look_up_the_host(home: Site, world: World, client: httpx.Client) -> None:
    """What could be looked up then and cannot now."""
    there = "https://no-such-host.invalid/"
    batch = batch_body(world.ids["file"], callback_url=there)
    for path, body in (
        (CREATE, NEW_ENDPOINT | {"url": there}),
        (CHANGE.format(endpoint=world.ids["endpoint"]), {"url": there}),
        ("/v1/batches", batch),
    ):
        asked = client.build_request(
            "POST", path, json=body, headers={"idempotency-key": uuid4().hex}
        )
        plant(home, asked, b"k" * 32)
        assert ok(client.send(asked))["planted"]
        refused(client.post(path, json=body, headers={"idempotency-key": uuid4().hex}), 400)


def test_a_test_event_is_sent_once(home: Site, world: World, client: httpx.Client) -> None:
    headers = {"idempotency-key": uuid4().hex}
    path = f"/v1/webhook_endpoints/{world.ids['endpoint']}/test"
    body = {"event_type": "batch.completed"}

    def trial(_: int) -> httpx.Response:
        return client.post(path, json=body, headers=headers)

    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(trial, 0)
        until_sent(home, 1)
        assert refused(trial(1), 409)["code"] == "idempotency_key_in_flight"
        refused(client.post(path, json={"event_type": "batch.failed"}, headers=headers), 422)
        assert record_tries(home, None) == 1
        assert refused(running.result(), 400)["code"] == "webhook_test_failed"

        running = pool.submit(trial, 0)  # a failure frees the key
        until_sent(home, 2)
        assert record_tries(home, 204) == 1
        first = running.result()
    second = trial(1)
    assert ok(first)["status_code"] == 204
    assert (second.content, is_replay(first), is_replay(second)) == (first.content, False, True)
    assert len(trials(home)) == 2


def request(client: httpx.Client, world: World, path: str, key: str) -> httpx.Request:
    """Return what asks a route for what it is for."""
    headers = {"idempotency-key": key}
    if path == "/v1/files":
        return client.build_request(
            "POST", path, data={"purpose": "batch"}, files=FILE, headers=headers
        )
    asked = (ASKS["POST", path] or [PLAIN.get(("POST", path), Ask(path))])[0]
    own = {f"own.{name}": value for name, value in world.ids.items()}
    filled, body = asked.filled({**world.ids, **own, "model": "org/all"})
    return client.build_request("POST", filled, json=body, headers=headers)


def claim_of(home: Site, asked: httpx.Request, route: str) -> IdempotencyClaim:
    """Return the claim that a request in JSON makes on its key, if it is sent to `route`."""
    return IdempotencyClaim(
        tenant_id=home.tenant_id,
        scope=KeyScope.CLIENT,
        key=asked.headers["idempotency-key"],
        route=route,
        body_sha256=hashlib.sha256(asked.read()).digest(),
        keep_s=60.0,
    )


def plant(home: Site, asked: httpx.Request, sealing_key: bytes) -> None:
    """Let the key of `asked` stand for an answer with a secret."""
    sealer = SecretCipher([sealing_key], os.urandom)
    sealed = base64.b64encode(sealer.encrypt(SECRET, home.tenant_id)).decode()
    body = msgspec.json.encode({"planted": True, "signing_secret": sealed})
    with home.engine.begin() as connection:
        save_answer(
            connection, claim_of(home, asked, f"POST {asked.url.path}"), StoredAnswer(200, body)
        )


def trials(home: Site) -> list[tuple[UUID, UUID]]:
    """Return message and endpoint of every sample that was begun."""
    table = webhook_deliveries.c
    query = sa.select(table.message_id, table.endpoint_id)
    with home.engine.connect() as connection:
        found = connection.execute(query.where(table.is_test, table.tenant_id == home.tenant_id))
        return [(row.message_id, row.endpoint_id) for row in found]


def until_sent(home: Site, count: int) -> None:
    until(lambda: len(trials(home)) >= count)


def record_tries(home: Site, status_code: int | None) -> int:
    """Play the role that sends: try every sample that was not tried; return how many."""
    with home.engine.begin() as connection:
        tried = set(connection.scalars(sa.select(webhook_attempts.c.message_id)))
        new = [(message, endpoint) for message, endpoint in trials(home) if message not in tried]
        for message_id, endpoint_id in new:
            connection.execute(
                webhook_attempts.insert().values(
                    message_id=message_id,
                    endpoint_id=endpoint_id,
                    number=1,
                    started_at=sa.func.now(),
                    duration_ms=1,
                    status_code=status_code,
                    error_code=None if status_code else "timed_out",
                )
            )
    return len(new)
