"""Goal: a repeated POST has one effect and one answer, and a key belongs to one request."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from jobs.tables.files import files
from jobs.tables.jobs import jobs
from tests.integration.api.answers import batch_body, file_id, is_replay, ok, refused
from tests.integration.api.sites import OpenSite, Site

KEY = "Idempotency-Key"
TRIES = "x-stainless-retry-count"
LINE = b'{"custom_id":"1","method":"POST","url":"/v1/embeddings","body":{"model":"m"}}\n'


def post_file(
    client: httpx.Client, content: bytes = LINE, *, headers: dict[str, str] | None = None
) -> httpx.Response:
    return client.post(
        "/v1/files",
        files={"file": ("in.jsonl", content)},
        data={"purpose": "batch"},
        headers=headers or {},
    )


def count(site: Site, table: sa.Table) -> int:
    query = sa.select(sa.func.count()).where(table.c.tenant_id == site.tenant_id)
    with site.engine.connect() as connection:
        return connection.scalar(query) or 0


def test_a_changed_body_or_route_is_refused(site: Site, client: httpx.Client) -> None:
    body = batch_body(file_id(client))
    batch = ok(client.post("/v1/batches", json=body, headers={KEY: "k"}))
    changed = client.post("/v1/batches", json=body | {"metadata": {"a": "b"}}, headers={KEY: "k"})
    moved = client.post(f"/v1/batches/{batch['id']}/cancel", headers={KEY: "k"})
    upload = post_file(client, headers={KEY: "k"})
    for answer in (changed, moved, upload):
        assert refused(answer, 422)["code"] == "idempotency_key_reused"
        assert not is_replay(answer)
    assert count(site, jobs) == 1
    assert count(site, files) == 1
    assert len(site.stored()) == 1


@pytest.mark.parametrize("make", [lambda: {KEY: "k"}, lambda: {TRIES: "0"}])
def test_a_repeated_upload_is_one_file(
    site: Site, client: httpx.Client, make: Callable[[], dict[str, str]]
) -> None:
    first = post_file(client, headers=make())
    repeat = make() if KEY in make() else {TRIES: "1"}
    second = post_file(client, headers=repeat)  # its boundary is another one
    assert (first.status_code, first.content) == (200, second.content)
    assert is_replay(second)
    assert count(site, files) == 1
    assert len(site.stored()) == 1


def test_a_replayed_upload_needs_no_quota(open_site: OpenSite) -> None:
    site = open_site(stored_bytes_max=2 * len(LINE) - 1)
    with site.client() as client:
        first = post_file(client, headers={KEY: "k"})
        second = post_file(client, headers={KEY: "k"})
        refused(post_file(client, headers={KEY: "other"}), 429)
    assert ok(first) == ok(second)
    assert len(site.stored()) == 1


def batch_of(client: httpx.Client, body: dict[str, Any], **headers: str) -> str:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    batch: str = ok(client.post("/v1/batches", json=body, headers=named))["id"]
    return batch


def test_an_sdk_retry_is_one_batch_and_a_second_request_another(client: httpx.Client) -> None:
    body = batch_body(file_id(client))
    first = batch_of(client, body, x_stainless_retry_count="0")
    wished = batch_of(client, body, x_stainless_retry_count="0")
    repeat = batch_of(client, body, x_stainless_retry_count="1")
    other = batch_of(client, body | {"metadata": {}}, x_stainless_retry_count="1")
    plain = batch_of(client, body)
    assert repeat == wished
    assert len({first, wished, other, plain}) == 4
