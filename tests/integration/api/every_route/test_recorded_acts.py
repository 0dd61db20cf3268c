"""Goal: every route that changes something leaves one row in the audit log, or is excused here.

The routes come from the application itself: a new one that changes something must be named here.
"""

from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from registry.models import ENDPOINTS
from tenancy.audit_reading import verify_chain
from tests.integration.api.answers import ok, refused
from tests.integration.api.every_route.asks import ASKS, NEW_ENDPOINT, Ask
from tests.integration.api.every_route.routes import is_for_operators, served
from tests.integration.api.every_route.worlds import Two, World, add_world, with_new_tenant

pytestmark = pytest.mark.timeout(180)  # the first test starts the whole API

CALLBACKS = "/v1/webhook_callback_secret/rotate"
ACTIONS = {
    ("POST", "/v1/batches"): "job.created",
    ("POST", "/v1/batches/{batch_id}"): "job.updated",
    ("POST", "/v1/batches/{batch_id}/append"): "job.appended",
    ("POST", "/v1/batches/{batch_id}/cancel"): "job.cancelled",
    ("POST", "/v1/batches/{batch_id}/pause"): "job.paused",
    ("POST", "/v1/batches/{batch_id}/resume"): "job.resumed",
    ("POST", "/v1/batches/{batch_id}/seal"): "job.sealed",
    ("POST", "/v1/dead_letters/redrive"): "items.redriven",
    ("POST", "/v1/webhook_endpoints"): "webhook_endpoint.created",
    ("POST", "/v1/webhook_endpoints/{endpoint_id}"): "webhook_endpoint.changed",
    ("POST", "/v1/webhook_endpoints/{endpoint_id}/rotate_secret"): "webhook_secret.rotated",
    ("POST", CALLBACKS): "webhook_secret.rotated",
    ("DELETE", "/v1/batches/{batch_id}"): "job.deleted",
    ("DELETE", "/v1/files/{file_id}"): "file.deleted",
    ("DELETE", "/v1/jobs/{job_id}"): "request.cancelled",
    ("DELETE", "/v1/webhook_endpoints/{endpoint_id}"): "webhook_endpoint.deleted",
}
NOT_RECORDED = {
    ("POST", "/v1/files"),  # a file shows itself, with its moment
    ("POST", "/v1/webhook_endpoints/{endpoint_id}/replay"),  # its history has every try
    ("POST", "/v1/webhook_endpoints/{endpoint_id}/test"),  # the same
    *(("POST", path) for path in ENDPOINTS),  # items, not operations: the ledger counts them
}
# Once each, in the order of ASKS, in which what ends something comes last.
ORDER = [route for route in ASKS if route in ACTIONS]


@pytest.fixture
def world(two: Two) -> World:
    """A tenant of this test alone."""
    home = with_new_tenant(two.site)
    return add_world(home, home.key)


def test_every_route_that_changes_something_is_recorded_or_excused() -> None:
    changing = {r for r in served() if r[0] != "GET" and not is_for_operators(r)}
    assert changing - ACTIONS.keys() == NOT_RECORDED
    assert ACTIONS.keys() <= changing


def test_each_action_adds_one_entry_to_the_chain(two: Two, world: World) -> None:
    with two.site.client(world.key) as client:
        before = newest(client)["sequence"]
        for number, route in enumerate(ORDER, 1):
            answer = perform(client, world, route)
            row = newest(client)
            assert row["sequence"] == before + number, (route, answer.text)
            assert row["action"] == ACTIONS[route]
            assert row["actor"] == f"key_{world.key.key_id.hex}"
            for name in ("signing_secret", "url"):
                if isinstance(answer.json().get(name), str):
                    assert answer.json()[name] not in str(row)

        refused(client.post("/v1/batches", json={}), 400)
        perform(client, world, ("POST", "/v1/batches/{batch_id}/pause"), expected=400)
        assert newest(client)["sequence"] == before + len(ORDER)

        pages = [ok(client.get("/v1/audit_log?limit=7"))]
        while pages[-1]["has_more"]:
            pages.append(ok(client.get(f"/v1/audit_log?limit=7&after={pages[-1]['last_id']}")))
    rows = [row for page in pages for row in page["data"]]
    assert [row["sequence"] for row in rows] == list(range(rows[0]["sequence"], 0, -1))
    assert [row["previous_hash"] for row in rows[:-1]] == [row["hash"] for row in rows[1:]]
    with two.site.engine.connect() as connection:
        tenant_id = connection.execute(
            sa.text("SELECT tenant_id FROM api_keys WHERE id = :id"), {"id": world.key.key_id}
        ).scalar_one()
        assert verify_chain(connection, tenant_id, {}).mismatch is None


def test_a_replay_adds_no_entry(two: Two, world: World) -> None:
    body = {"input_file_id": world.ids["file"], "endpoint": "/v1/embeddings"}
    with two.site.client(world.key) as client:
        answers = [
            ok(
                client.post(
                    "/v1/batches",
                    json=body | {"completion_window": "24h"},
                    headers={"idempotency-key": "once"},
                )
            )
            for _ in range(2)
        ]
        rows = ok(client.get("/v1/audit_log?limit=2"))["data"]

    assert answers[0] == answers[1]
    assert rows[0]["subject"] == answers[0]["id"]
    assert rows[0]["details"] == {"endpoint": "/v1/embeddings", "input_file": world.ids["file"]}
    assert rows[1]["subject"] != answers[0]["id"]


def newest(client: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = ok(client.get("/v1/audit_log?limit=1"))["data"][0]
    return found


def perform(
    client: httpx.Client, world: World, route: tuple[str, str], *, expected: int = 200
) -> httpx.Response:
    """Do as an owner what a route is for."""
    bodies = {"/v1/webhook_endpoints": NEW_ENDPOINT, CALLBACKS: {}}
    ask = ASKS[route][0] if ASKS[route] else Ask(route[1], bodies[route[1]])
    path, body = ask.filled(
        {**world.ids, **{f"own.{name}": value for name, value in world.ids.items()}}
    )
    answer = client.request(route[0], path, json=body)
    assert answer.status_code == expected, (route, answer.text)
    return answer
