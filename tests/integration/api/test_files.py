"""Goal: a file that was accepted can be listed, read and deleted by its owner, exactly."""

import hashlib
from email.message import Message
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from core.ids import FILE, JOB, parse_public_id
from jobs.store.removable_objects import find_removable_files
from jobs.tables.files import files
from jobs.tables.jobs import jobs
from tests.integration.api.answers import batch_body, file_id, ok, refused, upload
from tests.integration.api.sites import OpenSite, Site


def own_files(site: Site) -> sa.Select[Any]:
    return sa.select(files).where(files.c.tenant_id == site.tenant_id)


def change_files(site: Site) -> sa.Update:
    return sa.update(files).where(files.c.tenant_id == site.tenant_id)


def test_a_file_shows_every_documented_key(client: httpx.Client) -> None:
    created = ok(upload(client, b"line\n"))
    shown = ok(client.get(f"/v1/files/{created['id']}"))

    assert shown == created
    assert created["expires_at"] - created["created_at"] == 30 * 24 * 3600
    assert {k: created[k] for k in created.keys() - {"id", "created_at", "expires_at"}} == {
        "object": "file",
        "bytes": 5,
        "filename": "in.jsonl",
        "purpose": "batch",
        "status": "processed",
        "status_details": None,
    }


@pytest.mark.parametrize("content", [bytes(range(256)) * 3000, b""])
def test_the_row_has_the_object_and_its_digest(
    site: Site, client: httpx.Client, content: bytes
) -> None:
    created = file_id(client, content)
    assert client.get(f"/v1/files/{created}/content").content == content

    with site.engine.connect() as connection:
        row = connection.execute(own_files(site)).one()
    assert row.sha256 == hashlib.sha256(content).hexdigest()
    assert b"".join(site.objects.read(row.object_key)) == content


def test_expiry(client: httpx.Client) -> None:
    hour = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    bounded = ok(upload(client, b"x", **hour))
    endless = ok(upload(client, purpose="assistants"))
    wrong = [
        refused(upload(client, b"x", **(hour | {field: value})), 400)["param"]
        for field, value in [
            ("expires_after[seconds]", "3599"),
            ("expires_after[seconds]", "2592001"),
            ("expires_after[seconds]", "soon"),
            ("expires_after[seconds]", "9" * 4000),
            ("expires_after[anchor]", "now"),
        ]
    ]

    assert bounded["expires_at"] - bounded["created_at"] == 3600
    assert endless["expires_at"] is None
    assert wrong == ["expires_after[seconds]"] * 4 + ["expires_after[anchor]"]


def test_an_expired_file_is_gone(site: Site, client: httpx.Client) -> None:
    created = file_id(client)
    with site.engine.begin() as connection:
        past = sa.text("now() - interval '1 hour'")
        connection.execute(change_files(site).values(expires_at=past))
    refused(client.get(f"/v1/files/{created}"), 404)
    refused(client.post("/v1/batches", json=batch_body(created)), 400)
    assert ok(client.get("/v1/files"))["data"] == []

    with site.engine.begin() as connection:
        removable = {r.file_id for r in find_removable_files(connection, limit=999)}
        assert parse_public_id(FILE, created) in removable


def test_pages_in_both_orders_and_by_purpose(client: httpx.Client) -> None:
    ids = [file_id(client) for _ in range(5)]
    other = ok(upload(client, purpose="user_data"))["id"]

    seen: list[str] = []
    page = ok(client.get("/v1/files", params={"limit": 2, "purpose": "batch"}))
    while True:
        seen += [file["id"] for file in page["data"]]
        assert (page["first_id"], page["last_id"]) == (seen[-len(page["data"])], seen[-1])
        if not page["has_more"]:
            break
        query = {"limit": 2, "purpose": "batch", "after": page["last_id"]}
        page = ok(client.get("/v1/files", params=query))
    rising = ok(client.get("/v1/files", params={"order": "asc", "before": "x", "odd": "1"}))

    assert seen == ids[::-1]
    assert [file["id"] for file in rising["data"]] == [*ids, other]


def test_a_page_continues_after_a_deleted_file(client: httpx.Client) -> None:
    first, second = file_id(client), file_id(client)
    ok(client.delete(f"/v1/files/{second}"))
    page = ok(client.get("/v1/files", params={"after": second}))

    assert [file["id"] for file in page["data"]] == [first]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=10001", "limit"),
        ("limit=x", "limit"),
        ("limit=" + "9" * 5000, "limit"),
        ("order=up", "order"),
        ("purpose=%00", "purpose"),
        ("after=file-" + "0" * 32, "after"),
        ("after=x", "after"),
        ("after=%00", "after"),
        ("after=", "after"),
    ],
)
def test_invalid_queries_are_refused(client: httpx.Client, query: str, param: str) -> None:
    assert refused(client.get(f"/v1/files?{query}"), 400)["param"] == param


def test_ranges(client: httpx.Client) -> None:
    path = f"/v1/files/{file_id(client, b'0123456789')}/content"
    whole = client.get(path, headers={"accept": "application/binary"})
    tag = whole.headers["etag"]
    middle = client.get(path, headers={"range": "bytes=2-4", "if-range": tag})
    tail = client.get(path, headers={"range": "bytes=-3"})
    stale = client.get(path, headers={"range": "bytes=2-4", "if-range": '"x"'})
    behind = client.get(path, headers={"range": "bytes=10-"})

    assert (whole.status_code, whole.content) == (200, b"0123456789")
    assert whole.headers["content-length"] == "10"
    assert whole.headers["accept-ranges"] == "bytes"
    assert (middle.status_code, middle.content) == (206, b"234")
    assert middle.headers["content-range"] == "bytes 2-4/10"
    assert (tail.status_code, tail.content) == (206, b"789")
    assert (stale.status_code, stale.content) == (200, b"0123456789")
    refused(behind, 416)
    assert behind.headers["content-range"] == "bytes */10"


def test_a_name_is_shown_and_never_used_as_a_path(client: httpx.Client) -> None:
    created = ok(upload(client, name="../../ü\u202e.jsonl"))
    answer = client.get(f"/v1/files/{created['id']}/content")

    header = Message()
    header["content-disposition"] = answer.headers["content-disposition"]
    assert created["filename"] == "ü.jsonl"
    assert header.get_filename() == "_.jsonl"
    assert answer.headers["content-disposition"].endswith("filename*=UTF-8''%C3%BC.jsonl")


def test_delete_frees_the_object_at_once(site: Site, client: httpx.Client) -> None:
    created = file_id(client)
    assert ok(client.delete(f"/v1/files/{created}")) == {
        "id": created,
        "object": "file",
        "deleted": True,
    }
    for answer in (
        client.get(f"/v1/files/{created}"),
        client.get(f"/v1/files/{created}/content"),
        client.delete(f"/v1/files/{created}"),
    ):
        refused(answer, 404)
    assert ok(client.get("/v1/files"))["data"] == []

    assert site.stored() == []
    with site.engine.connect() as connection:
        assert connection.execute(own_files(site)).one().removed_at is not None


def test_a_deleted_input_is_kept_until_its_job_has_ended(site: Site, client: httpx.Client) -> None:
    created = file_id(client)
    job = ok(client.post("/v1/batches", json=batch_body(created)))
    ok(client.delete(f"/v1/files/{created}"))
    refused(client.get(f"/v1/files/{created}"), 404)
    refused(client.post("/v1/batches", json=batch_body(created)), 400)
    assert ok(client.get(f"/v1/batches/{job['id']}"))["input_file_id"] == created

    assert len(site.stored()) == 1
    with site.engine.begin() as connection:
        long_ago = sa.text("now() - interval '1 hour'")
        connection.execute(change_files(site).values(expires_at=long_ago))
        key = connection.execute(own_files(site)).one().object_key
        assert key not in {r.object_key for r in find_removable_files(connection, limit=999)}
        ended = sa.update(jobs).where(jobs.c.id == parse_public_id(JOB, job["id"]))
        connection.execute(ended.values(state="failed"))
        assert key in {r.object_key for r in find_removable_files(connection, limit=999)}
    assert list(site.objects.read(key)) == [b"{}\n"]


def test_a_tenant_stores_no_more_than_its_limit(open_site: OpenSite) -> None:
    site = open_site(stored_bytes_max=1000)
    with site.client() as client, site.client(site.other_key) as other:
        kept = file_id(client, b"x" * 900)
        answer = upload(client, b"x" * 101)
        error = refused(answer, 429)
        assert error["type"] == "insufficient_quota"
        assert answer.headers["x-should-retry"] == "false"
        assert "retry-after" not in answer.headers
        ok(upload(client, b"x" * 100))
        ok(upload(other, b"x" * 1000))

        # What a job still reads counts, though its owner deleted it.
        ok(client.post("/v1/batches", json=batch_body(kept)))
        ok(client.delete(f"/v1/files/{kept}"))
        refused(upload(client, b"x"), 429)

    assert len(site.stored()) == 3
