"""Goal: objects of another tenant behave like objects that never existed, on every route."""

import time

import pytest

from tenancy.api_keys import revoke_key
from tests.integration.api.answers import batch_body, batch_id, file_id, ok, refused
from tests.integration.api.conftest import OpenSite, Site

NO_FILE, NO_BATCH = "file-" + "0" * 32, "batch_" + "0" * 32

ROUTES = [
    ("GET", "/v1/files/{file}", None),
    ("GET", "/v1/files/{file}/content", None),
    ("DELETE", "/v1/files/{file}", None),
    ("GET", "/v1/files?after={file}", None),
    ("GET", "/v1/batches/{batch}", None),
    ("POST", "/v1/batches/{batch}/cancel", None),
    ("GET", "/v1/batches?after={batch}", None),
    ("POST", "/v1/batches", batch_body("{file}")),
]

EVERY_ROUTE = [
    *((method, path) for method, path, _ in ROUTES),
    ("POST", "/v1/files"),
    ("GET", "/v1/files"),
    ("GET", "/v1/batches"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/org/small"),
]


@pytest.mark.parametrize(("method", "path", "body"), ROUTES)
def test_a_foreign_id_is_like_a_missing_one(
    site: Site, method: str, path: str, body: dict[str, object] | None
) -> None:
    with site.client() as owner, site.client(site.other_key) as stranger:
        file, batch = file_id(owner), batch_id(owner)
        answers = []
        for ids in ({"file": file, "batch": batch}, {"file": NO_FILE, "batch": NO_BATCH}):
            filled = body and {k: str(v).format(**ids) for k, v in body.items()}
            answers.append(stranger.request(method, path.format(**ids), json=filled))
        foreign, missing = answers

        refused(foreign, missing.status_code)
        assert foreign.status_code in {400, 404}
        assert foreign.content == missing.content
        kept = {"date", "x-request-id"}
        assert {k: v for k, v in foreign.headers.items() if k not in kept} == {
            k: v for k, v in missing.headers.items() if k not in kept
        }
        ok(owner.get(f"/v1/files/{file}"))
        assert ok(owner.get(f"/v1/batches/{batch}"))["status"] == "validating"
        assert ok(stranger.get("/v1/files"))["data"] == []
        assert ok(stranger.get("/v1/batches"))["data"] == []


@pytest.mark.parametrize(("method", "path"), EVERY_ROUTE)
def test_every_route_requires_a_key(site: Site, method: str, path: str) -> None:
    path = path.format(file=NO_FILE, batch=NO_BATCH)
    with site.client() as client:
        for authorization in (
            "",
            "Bearer sk-x",
            "Bearer " + "sk-" + "a" * 51,
            "Basic x",
        ):
            answer = client.request(method, path, headers={"authorization": authorization})
            assert refused(answer, 401)["code"] == "invalid_api_key"
            assert answer.headers["www-authenticate"] == "Bearer"


def test_a_key_may_come_in_either_header(site: Site) -> None:
    with site.client() as client:
        ok(client.get("/v1/models"))
        del client.headers["authorization"]
        ok(client.get("/v1/models", headers={"x-api-key": site.key.secret}))


def test_a_revoked_key_stops(open_site: OpenSite) -> None:
    site = open_site(key_cache_s=0.2)
    with site.client() as client:
        ok(client.get("/v1/models"))
        with site.engine.begin() as connection:
            assert revoke_key(connection, site.key.key_id)
            assert not revoke_key(connection, site.key.key_id)
        deadline = time.monotonic() + 5
        while client.get("/v1/models").status_code == 200:
            assert time.monotonic() < deadline
        refused(client.get("/v1/models"), 401)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1/nope", 404),
        ("GET", "/v1/files/", 404),
        ("GET", "/docs", 404),
        ("GET", "/openapi.json", 404),
        ("PUT", "/v1/files", 405),
        ("PATCH", "/v1/batches", 405),
        ("PUT", f"/v1/batches/{NO_BATCH}", 405),
        ("OPTIONS", "/v1/files", 405),
        ("GET", f"/v1/batches/{NO_BATCH}/cancel", 405),
        ("GET", "/v1/files/%00", 404),
        ("GET", "/v1/files/..%2f..%2fetc", 404),
        ("GET", "/v1/models/%00", 404),
        ("GET", "/v1/models/" + "x" * 2000, 404),
        ("GET", "/v1/batches/%ff%fe", 404),
    ],
)
def test_every_refusal_is_in_the_envelope(site: Site, method: str, path: str, status: int) -> None:
    with site.client() as client:
        refused(client.request(method, path), status)


def test_models(site: Site) -> None:
    with site.client() as client:
        (model,) = ok(client.get("/v1/models"))["data"]
        assert ok(client.get("/v1/models/org/small")) == model
        assert ok(client.get("/v1/models/org%2Fsmall")) == model
        assert refused(client.get("/v1/models/org"), 404)["code"] == "model_not_found"

    assert {k: model[k] for k in ("id", "object", "owned_by", "millrace")} == {
        "id": "org/small",
        "object": "model",
        "owned_by": "millrace-simulated",
        "millrace": {"version": "1", "engine": "simulated", "endpoints": ["/v1/embeddings"]},
    }


def test_documentation_is_served_only_if_enabled(open_site: OpenSite) -> None:
    site = open_site(docs=True)
    with site.client() as client:
        assert client.get("/docs").status_code == 200
        assert "/v1/batches" in client.get("/openapi.json").json()["paths"]
