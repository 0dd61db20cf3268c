"""Goal: a key opens its tenant's objects until it is revoked, and every refusal is uniform."""

import httpx
import pytest

from tests.integration.api.answers import ok, refused
from tests.integration.api.sites import OpenSite, Site

NO_BATCH = "batch_" + "0" * 32


def test_a_key_may_come_in_either_header(site: Site, client: httpx.Client) -> None:
    ok(client.get("/v1/models"))
    del client.headers["authorization"]
    ok(client.get("/v1/models", headers={"x-api-key": site.key.secret}))


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
def test_every_refusal_is_in_the_envelope(
    client: httpx.Client, method: str, path: str, status: int
) -> None:
    refused(client.request(method, path), status)


def test_models(client: httpx.Client) -> None:
    (model,) = ok(client.get("/v1/models"))["data"]
    assert ok(client.get("/v1/models/org/small")) == model
    assert ok(client.get("/v1/models/org%2Fsmall")) == model
    assert refused(client.get("/v1/models/org"), 404)["code"] == "model_not_found"

    assert {k: model[k] for k in ("id", "object", "owned_by", "millrace")} == {
        "id": "org/small",
        "object": "model",
        "owned_by": "millrace-simulated",
        "millrace": {
            "version": "1",
            "engine": "simulated",
            "endpoints": ["/v1/embeddings"],
            "model": "org/small",
            "verification": "legacy",
            "base": None,
        },
    }


def test_documentation_is_served_only_if_enabled(open_site: OpenSite) -> None:
    site = open_site(docs=True)
    with site.client() as client:
        assert client.get("/docs").status_code == 200
        assert "/v1/batches" in client.get("/openapi.json").json()["paths"]
