"""Goal: while the object store throttles, only calls that need it are answered 503."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from storage.objects.errors import ObjectStoreUnavailableError
from storage.objects.local_object_store import LocalObjectStore
from tests.integration.api.answers import batch_body, file_id, ok, refused, upload
from tests.integration.api.sites import OpenSite, Site

Throttle = Callable[[Site], None]


@pytest.fixture
def throttle(monkeypatch: pytest.MonkeyPatch) -> Throttle:
    """Let the store of a site answer each request as one that throttles, after all retries."""

    def slow_down(*_: object, **__: object) -> Any:
        raise ObjectStoreUnavailableError(s3_code="SlowDown")

    def start(site: Site) -> None:
        for method in ("begin_upload", "read", "size", "delete", "list"):
            monkeypatch.setattr(site.objects, method, slow_down)

    return start


def is_told_to_retry(answer: httpx.Response) -> bool:
    error = refused(answer, 503)
    assert error["type"] == "service_unavailable_error"
    return 1 <= int(answer.headers["retry-after"]) <= 60


def test_only_content_needs_the_store(site: Site, client: httpx.Client, throttle: Throttle) -> None:
    kept, deleted = file_id(client), file_id(client)
    throttle(site)

    assert is_told_to_retry(upload(client))
    assert is_told_to_retry(client.get(f"/v1/files/{kept}/content"))

    batch = ok(client.post("/v1/batches", json=batch_body(kept)))
    assert ok(client.get(f"/v1/batches/{batch['id']}"))["status"] == "validating"
    assert ok(client.post(f"/v1/batches/{batch['id']}/cancel"))["id"] == batch["id"]
    assert ok(client.get("/v1/batches"))["data"]
    assert ok(client.get(f"/v1/files/{kept}"))["id"] == kept
    assert ok(client.delete(f"/v1/files/{deleted}"))["deleted"]
    refused(client.get(f"/v1/files/{deleted}"), 404)


def test_a_refused_upload_is_refused_for_its_own_reason(
    open_site: OpenSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow_down(_: LocalObjectStore, __: str) -> None:
        raise ObjectStoreUnavailableError

    site = open_site()
    with site.client() as client:
        headers = {"idempotency-key": "once"}
        form: dict[str, Any] = {"data": {"purpose": "batch"}}
        first = client.post("/v1/files", files={"file": ("a", b"1\n")}, headers=headers, **form)
        monkeypatch.setattr(LocalObjectStore, "delete", slow_down)
        again = client.post("/v1/files", files={"file": ("a", b"1\n")}, headers=headers, **form)
        assert ok(again)["id"] == ok(first)["id"]
        other = client.post("/v1/files", files={"file": ("a", b"2\n")}, headers=headers, **form)
        refused(other, 422)
