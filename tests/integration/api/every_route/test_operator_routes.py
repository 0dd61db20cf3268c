"""Goal: operators manage tenants and keys over the API, and each of their operations is recorded.

The routes come from the application itself: a new one without an entry in `asks.py` fails here.
"""

from typing import Any
from uuid import uuid4

import httpx
import pytest
import sqlalchemy as sa

from core.ids import OPERATOR_KEY, TENANT, new_uuid, parse_public_id, public_id
from migrations.schema import SCHEMA
from tenancy.audit_reading import verify_chain
from tenancy.installation_log import INSTALLATION
from tenancy.operator_keys import OperatorRole, create_operator_key, revoke_operator_key
from tests.integration.api.answers import is_replay, newest, ok, refused
from tests.integration.api.every_route.asks import MODEL_PATHS, OPERATOR_ASKS, PLAIN, Ask
from tests.integration.api.every_route.routes import SILENT
from tests.integration.api.every_route.worlds import Two, add_quarantine, everything, never_existed
from tests.support.until import until

pytestmark = pytest.mark.timeout(180)  # the first test starts the whole API

TENANTS = "/v1/admin/tenants"
POSTS = [p for method, p in OPERATOR_ASKS if method == "POST" and not p.startswith(MODEL_PATHS)]
ACTIONS = {
    ("POST", TENANTS): "tenant.created",
    ("POST", f"{TENANTS}/{{tenant_id}}"): "tenant.updated",
    ("POST", f"{TENANTS}/{{tenant_id}}/keys"): "key.created",
    ("DELETE", "/v1/admin/keys/{key_id}"): "key.revoked",
    ("DELETE", "/v1/admin/quarantines/{quarantine_id}"): "quarantine.ended",
    ("DELETE", f"{TENANTS}/{{tenant_id}}"): "tenant.deleted",
}
ALL_ASKS = [(method, ask) for (method, _), asks in OPERATOR_ASKS.items() for ask in asks]


@pytest.fixture
def client(two: Two) -> httpx.Client:
    return two.asking_operator


@pytest.fixture
def tenant(client: httpx.Client) -> str:
    """A tenant of one test alone."""
    return str(ok(client.post(TENANTS, json={"name": uuid4().hex}))["id"])


def of_tenant(path: str, tenant: str) -> str:
    return path.replace("{tenant_id}", tenant)


@pytest.mark.parametrize(("method", "ask"), ALL_ASKS, ids=lambda part: getattr(part, "path", part))
def test_an_unknown_id_is_refused(two: Two, client: httpx.Client, method: str, ask: Ask) -> None:
    assert ask.names
    before = everything(two.site.engine)
    for ids in (never_existed(), dict.fromkeys(never_existed(), "nothing")):
        path, body = ask.filled(ids)
        answer = client.request(method, path, json=body)
        assert refused(answer, 400 if "after=" in path else 404)["code"]
    assert everything(two.site.engine) == before


def test_a_key_with_the_role_read_changes_nothing(two: Two) -> None:
    before = everything(two.site.engine)
    for (method, path), asks in OPERATOR_ASKS.items():
        for ask in asks or [PLAIN.get((method, path), Ask(path))]:
            url, body = ask.filled(two.operators_ids)
            answer = two.asking_reader.request(method, url, json=body)
            if path in SILENT:
                error = refused(answer, 503)
                named = (error["type"], error["code"], answer.headers["retry-after"])
                assert named == ("service_unavailable_error", "service_unknown", "5")
            elif path == "/v1/admin/model_plan":  # of a version without stored files
                assert refused(answer, 400)["code"] == "model_refused"
            elif method == "GET":
                ok(answer)
            else:
                assert refused(answer, 403)["code"] == "operator_role"
    assert everything(two.site.engine) == before


def test_a_tenant_is_created_shown_and_changed(client: httpx.Client) -> None:
    name = f"Zürich {uuid4().hex}"
    made = ok(client.post(TENANTS, json={"name": name, "stored_bytes_max": 5}))
    assert made == {
        "id": made["id"],
        "object": "tenant",
        "created_at": made["created_at"],
        "name": name,
        "stored_bytes_max": 5,
        "zero_retention": False,
        "call_timeout_ms": None,
        "response_cache_ttl_s": None,
        "weight": 1,
        "reserved_shares": {},
        "priority_class": "normal",
        "bulk_hours": None,
        "infeasible_jobs": "accept",
        "degraded_output_tokens_max": None,
        "degraded_model": None,
    }
    path = f"{TENANTS}/{made['id']}"
    limits = {
        "stored_bytes_max": None,
        "call_timeout_ms": 1000,
        "response_cache_ttl_s": 60,
        "weight": 1000,
        "reserved_shares": {"large": 0.25, "*": 0.1},
        "priority_class": "high",
        "bulk_hours": "22:00-06:00 Europe/Berlin",
        "infeasible_jobs": "fail",
        "degraded_output_tokens_max": 256,
        "degraded_model": "org/small",
    }
    assert ok(client.post(path, json=limits)) == {**made, **limits}
    assert ok(client.post(path, json={})) == {**made, **limits}
    off = {"zero_retention": True, "response_cache_ttl_s": None}
    assert ok(client.post(path, json={"zero_retention": True})) == {**made, **limits, **off}
    assert ok(client.get(path)) == ok(client.get(TENANTS, params={"name": name}))["data"][0]
    assert ok(client.get(TENANTS, params={"name": f"{name}?"}))["data"] == []

    conflict = refused(client.post(path, json={"response_cache_ttl_s": 1}), 409)
    assert conflict["code"] == "zero_retention"
    assert refused(client.post(TENANTS, json={"name": name}), 409)["code"] == "tenant_exists"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": ""},
        {"name": " "},
        {"name": "a\nb"},
        {"name": "x" * 257},
        {"name": "a", "admin": True},
        {"name": "a", "stored_bytes_max": -1},
        {"name": "a", "stored_bytes_max": 2**63},
        {"name": "a", "zero_retention": "yes"},
    ],
)
def test_an_invalid_tenant_is_refused(
    two: Two, client: httpx.Client, body: dict[str, object]
) -> None:
    before = everything(two.site.engine)
    refused(client.post(TENANTS, json=body), 400)
    assert everything(two.site.engine) == before


@pytest.mark.parametrize(
    "body",
    [
        {"name": "other"},
        {"call_timeout_ms": 0},
        {"call_timeout_ms": 86_400_001},
        {"response_cache_ttl_s": 0},
        {"response_cache_ttl_s": 86_401},
        {"weight": 0},
        {"weight": 1001},
        {"weight": 1.5},
        {"weight": None},
        {"reserved_shares": {"large": 0.91}},
        {"reserved_shares": {"large": 0.0001}},
        {"reserved_shares": {"Large pool": 0.1}},
        {"reserved_shares": {f"p-{n}": 0.1 for n in range(101)}},
        {"reserved_shares": None},
        {"priority_class": "highest"},
        {"priority_class": None},
        {"bulk_hours": "22:00-06:00 Mars"},
        {"bulk_hours": ""},
        {"infeasible_jobs": "drop"},
        {"infeasible_jobs": None},
        {"degraded_output_tokens_max": 0},
        {"degraded_output_tokens_max": 10_000_001},
        {"degraded_output_tokens_max": 1.5},
        {"degraded_model": ""},
        {"degraded_model": "two words"},
        {"degraded_model": "x" * 257},
        {"bulk_hours": "x" * 201},
        {"zero_retention": None},
    ],
)
def test_an_invalid_change_is_refused(
    two: Two, client: httpx.Client, tenant: str, body: dict[str, object]
) -> None:
    before = everything(two.site.engine)
    refused(client.post(f"{TENANTS}/{tenant}", json=body), 400)
    assert everything(two.site.engine) == before


def test_a_body_above_the_limit_is_refused(client: httpx.Client, tenant: str) -> None:
    for path in POSTS:
        body = b'{"name": "' + b"x" * 2**20 + b'"}'
        headers = {"content-type": "application/json"}
        answer = client.post(of_tenant(path, tenant), content=body, headers=headers)
        assert refused(answer, 413)["code"] == "body_too_large"


def test_a_key_works_until_it_is_revoked(two: Two, client: httpx.Client, tenant: str) -> None:
    made = ok(client.post(f"{TENANTS}/{tenant}/keys", json={"name": "ci"}))
    secret = made.pop("secret")
    headers = {"authorization": f"Bearer {secret}"}
    with httpx.Client(base_url=two.site.url, headers=headers, timeout=20) as of_tenant_:
        ok(of_tenant_.get("/v1/models"))
        assert ok(client.get("/v1/admin/keys", params={"tenant": tenant}))["data"] == [made]
        revoked = ok(client.delete(f"/v1/admin/keys/{made['id']}"))
        until(lambda: of_tenant_.get("/v1/models").status_code == 401)

    assert revoked["revoked_at"] is not None
    again = client.delete(f"/v1/admin/keys/{made['id']}")
    assert refused(again, 404)["code"] == "key_not_found"
    assert ok(client.get("/v1/admin/keys", params={"tenant": tenant}))["data"] == []
    with_revoked = client.get("/v1/admin/keys", params={"tenant": tenant, "revoked": True})
    assert ok(with_revoked)["data"] == [revoked]
    assert made == {
        "id": made["id"],
        "object": "api_key",
        "created_at": made["created_at"],
        "revoked_at": None,
        "tenant_id": tenant,
        "tenant": made["tenant"],
        "name": "ci",
        "hint": secret[-4:],
    }


def test_lists_are_read_page_by_page(client: httpx.Client) -> None:
    made = [ok(client.post(TENANTS, json={"name": uuid4().hex}))["id"] for _ in range(3)]
    for path in ("/v1/admin/tenants", "/v1/admin/keys", "/v1/admin/audit_log", "/v1/admin/topics"):
        whole = ok(client.get(path, params={"limit": 100}))
        page = ok(client.get(path, params={"limit": 2}))
        assert page["data"] == whole["data"][:2]
        assert page["has_more"]
        behind = ok(client.get(path, params={"limit": 2, "after": page["last_id"]}))
        assert behind["data"] == whole["data"][2:4]
        refused(client.get(path, params={"limit": 0}), 400)
        refused(client.get(path, params={"limit": 101}), 400)
    newest = ok(client.get(TENANTS, params={"limit": 3}))["data"]
    assert [row["id"] for row in newest] == made[::-1]


@pytest.mark.parametrize("path", POSTS)
def test_every_post_is_executed_once(
    two: Two, client: httpx.Client, tenant: str, path: str
) -> None:
    """A replay has the same bytes, the secret of a key among them; no table has that secret."""
    url, key = of_tenant(path, tenant), uuid4().hex
    body = {"name": uuid4().hex} if path == TENANTS else {}
    first, second = (client.post(url, json=body, headers={"idempotency-key": key}) for _ in "12")
    assert ok(first) == ok(second)
    assert first.content == second.content
    assert (is_replay(first), is_replay(second)) == (False, True)
    other = {"name": "x"} if path.endswith(("tenants", "keys")) else {"zero_retention": False}
    again = client.post(url, json=other, headers={"idempotency-key": key})
    assert refused(again, 422)["code"] == "idempotency_key_reused"
    for invalid in ("", "x" * 256):
        answer = client.post(url, json=body, headers={"idempotency-key": invalid})
        assert refused(answer, 400)["code"] == "idempotency_key_invalid"
    if secret := first.json().get("secret"):
        assert secret not in str(everything(two.site.engine))
        assert secret.encode().hex() not in str(everything(two.site.engine))


def test_a_retry_without_a_key_is_executed_once(client: httpx.Client, tenant: str) -> None:
    url, body = f"{TENANTS}/{tenant}/keys", {"name": uuid4().hex}
    first, second = (
        client.post(url, json=body, headers={"x-stainless-retry-count": count}) for count in "01"
    )
    assert first.content == second.content
    assert is_replay(second)


def test_operators_share_no_idempotency_keys(two: Two, client: httpx.Client) -> None:
    with two.site.engine.begin() as connection:
        other = create_operator_key(connection, "other", OperatorRole.ADMIN)
    headers = {"idempotency-key": uuid4().hex}
    with two.site.client(other) as colleague:
        first, second = (
            one.post(TENANTS, json={"name": uuid4().hex}, headers=headers)
            for one in (client, colleague)
        )
    assert ok(first)["id"] != ok(second)["id"]


def test_a_revoked_operator_key_stops(two: Two) -> None:
    with two.site.engine.begin() as connection:
        key = create_operator_key(connection, "soon revoked", OperatorRole.READ)
    with two.site.client(key) as client:
        ok(client.get(TENANTS))
        with two.site.engine.begin() as connection:
            assert revoke_operator_key(connection, key.key_id)
        until(lambda: client.get(TENANTS).status_code == 401)


def test_every_change_is_on_both_chains(two: Two, client: httpx.Client, tenant: str) -> None:
    changing = {r for r in OPERATOR_ASKS if r[0] != "GET" and not r[1].startswith(MODEL_PATHS)}
    assert changing == ACTIONS.keys()
    key = ok(client.post(f"{TENANTS}/{tenant}/keys", json={}))
    tenant_uuid = parse_public_id(TENANT, tenant)
    assert tenant_uuid is not None
    quarantine = add_quarantine(two.site.engine, tenant_uuid)
    ids = {"{tenant_id}": tenant, "{key_id}": key["id"], "{quarantine_id}": quarantine}
    bodies: dict[str, dict[str, Any]] = {
        TENANTS: {"name": uuid4().hex},
        f"{TENANTS}/{{tenant_id}}": {"call_timeout_ms": 5},
    }
    before = newest(client)["sequence"]
    for number, (method, path) in enumerate(ACTIONS, 1):
        url = path
        for name, value in ids.items():
            url = url.replace(name, value)
        answer = client.request(method, url, json=bodies.get(path, {}))
        row = newest(client)
        assert row["sequence"] == before + number, (path, answer.text)
        assert row["action"] == ACTIONS[method, path]
        assert row["actor"] == public_id(OPERATOR_KEY, two.operator.key_id)
        assert row["details"]["address"] == "127.0.0.1"
        assert row["details"]["request_id"] == answer.headers["x-request-id"]
        assert row["details"]["tenant"] == answer.json().get("tenant_id", answer.json()["id"])
        assert answer.json().get("secret", "none") not in str(row)
        assert bodies.get(path, {}).get("name", "no name") not in str(row)
    refused(client.post(TENANTS, json={}), 400)
    assert newest(client)["sequence"] == before + len(ACTIONS)

    with two.site.engine.connect() as connection:
        tenant_id = connection.scalar(
            sa.text("SELECT id FROM tenants WHERE id = CAST(:id AS uuid)"),
            {"id": tenant.removeprefix(f"{TENANT}_")},
        )
        of_tenant_ = verify_chain(connection, tenant_id, {})
        assert (of_tenant_.mismatch, of_tenant_.head.sequence) == (None, 7)
        assert verify_chain(connection, INSTALLATION, {}).mismatch is None


def test_lists_of_the_installation_show_what_it_has(client: httpx.Client) -> None:
    models = ok(client.get("/v1/admin/models"))["data"]
    assert ("org/small", "1", "small") in [(m["id"], m["version"], m["pool"]) for m in models]
    (pool,) = [p for p in ok(client.get("/v1/admin/pools"))["data"] if p["id"] == "small"]
    assert "org/small@1" in pool["model_versions"]
    assert pool["classes"]["bulk"]["replicas"] == 0
    topics = [t["id"] for t in ok(client.get("/v1/admin/topics", params={"limit": 100}))["data"]]
    assert {"requests.bulk", "batches.small.bulk", "batches.small.interactive"} <= {*topics}
    assert ok(client.get("/v1/admin/replicas"))["data"] == []


def test_an_ended_quarantine_is_gone(two: Two, client: httpx.Client, tenant: str) -> None:
    tenant_uuid = parse_public_id(TENANT, tenant)
    assert tenant_uuid is not None
    quarantine = add_quarantine(two.site.engine, tenant_uuid)
    path = f"/v1/admin/quarantines/{quarantine}"
    listed = ok(client.get("/v1/admin/quarantines", params={"limit": 100}))["data"]
    (shown,) = [one for one in listed if one["id"] == quarantine]
    assert (shown["tenant_id"], shown["pool"]) == (tenant, "p")
    assert shown["ends_at"] - shown["created_at"] == 3600
    assert refused(two.asking_reader.delete(path), 403)["code"] == "operator_role"

    assert ok(client.delete(path)) == shown
    assert refused(client.delete(path), 404)["code"] == "quarantine_not_found"
    listed = ok(client.get("/v1/admin/quarantines", params={"limit": 100}))["data"]
    assert quarantine not in [one["id"] for one in listed]


def test_the_role_of_tenants_may_not_read_operator_keys(two: Two) -> None:
    assert "operator_keys" in SCHEMA.tables
    with two.site.engine.connect() as connection:
        rights = sa.text("SELECT has_any_column_privilege('millrace_tenant', :name, 'SELECT')")
        assert connection.scalar(rights, {"name": "operator_keys"}) is False


def test_a_deleted_tenant_is_shown_nowhere_and_its_key_stops(
    two: Two, client: httpx.Client
) -> None:
    name = uuid4().hex
    tenant = ok(client.post(TENANTS, json={"name": name}))["id"]
    secret = ok(client.post(f"{TENANTS}/{tenant}/keys", json={}))["secret"]
    headers = {"authorization": f"Bearer {secret}"}
    with httpx.Client(base_url=two.site.url, headers=headers, timeout=20) as of_tenant_:
        ok(of_tenant_.get("/v1/models"))
        deleted = ok(client.delete(f"{TENANTS}/{tenant}"))
        until(lambda: of_tenant_.get("/v1/models").status_code == 401)

    assert deleted == {"id": tenant, "object": "tenant", "deleted": True}
    assert refused(client.delete(f"{TENANTS}/{tenant}"), 404)["code"] == "tenant_missing"
    for path in (f"{TENANTS}/{tenant}", f"/v1/admin/keys?tenant={tenant}"):
        assert refused(client.get(path), 404)["code"] == "tenant_missing"
    paths = (f"{TENANTS}/{tenant}", f"{TENANTS}/{tenant}/keys")
    codes = {refused(client.post(path, json={}), 404)["code"] for path in paths}
    assert codes == {"tenant_missing"}
    assert tenant not in client.get(TENANTS, params={"limit": 100}).text
    assert not ok(client.get(TENANTS, params={"name": f"deleted {tenant}"}))["data"]
    assert ok(client.post(TENANTS, json={"name": name}))["id"] != tenant


def test_a_missing_tenant_is_never_created(client: httpx.Client) -> None:
    missing = public_id(TENANT, new_uuid())
    assert refused(client.post(f"{TENANTS}/{missing}", json={}), 404)["code"] == "tenant_missing"
