"""Goal: a batch is created completely or not at all, and its owner sees and cancels it."""

import json
from typing import TypeVar

import httpx
import pytest
import sqlalchemy as sa

from core.ids import JOB, parse_public_id
from core.states import CloseReason
from jobs.tables.jobs import job_counters, job_cursors, jobs
from storage.postgres.outbox import outbox
from tests.integration.api.answers import batch_body, batch_id, file_id, ok, refused, upload
from tests.integration.api.sites import Site
from topics.records.codec import decode
from topics.records.records import JobClose, JobControl, JobEvent, Record

R = TypeVar("R", bound=Record)

KEYS = {
    "id", "object", "endpoint", "model", "errors", "input_file_id", "completion_window", "status",
    "output_file_id", "error_file_id", "created_at", "in_progress_at", "expires_at",
    "finalizing_at", "completed_at", "failed_at", "expired_at", "cancelling_at", "cancelled_at",
    "request_counts", "usage", "metadata", "millrace",
}  # fmt: skip


def outbox_rows(site: Site, topic: str) -> list[sa.Row[tuple[object, ...]]]:
    with site.engine.connect() as connection:
        query = sa.select(outbox).where(outbox.c.topic == topic, outbox.c.id > site.outbox_before)
        return list(connection.execute(query.order_by(outbox.c.id)))


def set_job(site: Site, batch: str, **columns: object) -> None:
    with site.engine.begin() as connection:
        one = sa.update(jobs).where(jobs.c.id == parse_public_id(JOB, batch))
        connection.execute(one.values(**columns))


def test_a_new_batch_shows_every_documented_key(client: httpx.Client) -> None:
    source = file_id(client)
    body = batch_body(source, metadata={"team": "α"}, completion_window="90m")
    created = ok(client.post("/v1/batches", json=body))
    assert ok(client.get(f"/v1/batches/{created['id']}")) == created

    assert created.keys() == KEYS
    assert created["object"] == "batch"
    assert created["status"] == "validating"
    assert created["input_file_id"] == source
    assert created["metadata"] == {"team": "α"}
    assert created["expires_at"] - created["created_at"] == 5400
    assert created["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    assert created["usage"]["total_tokens"] == 0
    null = {key for key in KEYS if created[key] is None}
    assert null == {
        "model", "errors", "output_file_id", "error_file_id", "in_progress_at", "finalizing_at",
        "completed_at", "failed_at", "expired_at", "cancelling_at", "cancelled_at",
    }  # fmt: skip


def test_creation_is_one_transaction_with_its_event(site: Site, client: httpx.Client) -> None:
    trace = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    body = batch_body(
        file_id(client), output_expires_after={"anchor": "created_at", "seconds": 3600}
    )
    answer = client.post("/v1/batches", json=body, headers={"traceparent": trace})
    job_id = parse_public_id(JOB, ok(answer)["id"])
    assert job_id is not None

    with site.engine.connect() as connection:
        row = connection.execute(sa.select(jobs).where(jobs.c.id == job_id)).one()
        for table in (job_cursors, job_counters):
            beside = sa.select(table.c.job_id).where(table.c.job_id == job_id)
            assert connection.execute(beside).scalar_one() == job_id
    assert (row.id, row.output_expires_after_s, row.traceparent) == (job_id, 3600, trace)
    assert row.metadata is None
    (event,) = outbox_rows(site, "events")
    assert event.key == job_id.bytes
    record = decode_row(JobEvent, event)
    assert (record.job_id, record.state) == (job_id, "validating")


def decode_row(record: type[R], row: sa.Row[tuple[object, ...]]) -> R:
    return decode(record, row.value, [(name, value.encode()) for name, value in row.headers])


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"endpoint": "/v1/nope"}, "endpoint"),
        ({"completion_window": "29s"}, "completion_window"),
        ({"metadata": {"k": 1}}, "metadata"),
        ({"metadata": []}, "metadata"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"metadata": {"k" * 65: ""}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"metadata": {"k": "\x00"}}, "metadata"),
        ({"metadata": {"\x00": "v"}}, "metadata"),
        ({"input_file_id": "file-" + "0" * 32}, "input_file_id"),
        ({"input_file_id": "\x00"}, "input_file_id"),
        ({"input_file_id": 7}, "input_file_id"),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": 10**30}},
            "output_expires_after.seconds",
        ),
        ({"output_expires_after": {"anchor": "created_at"}}, "seconds"),
        (
            {"output_expires_after": {"anchor": "x\n'" * 9999, "seconds": 3600}},
            "output_expires_after.anchor",
        ),
    ],
)
def test_an_invalid_field_is_named(
    site: Site, client: httpx.Client, change: dict[str, object], param: str
) -> None:
    answer = client.post("/v1/batches", json=batch_body(file_id(client)) | change)
    assert refused(answer, 400)["param"] == param
    assert len(answer.content) < 1000  # whatever was sent

    with site.engine.connect() as connection:
        own = sa.select(jobs.c.id).where(jobs.c.tenant_id == site.tenant_id)
        assert connection.execute(own).all() == []
    assert outbox_rows(site, "events") == []


def test_a_large_body_is_refused(client: httpx.Client) -> None:
    huge = json.dumps({"endpoint": "x" * 2_000_000})
    as_json = {"content-type": "application/json"}
    refused(client.post("/v1/batches", content=huge, headers=as_json), 413)
    pieces = iter([b"x" * 100_000] * 20)
    refused(client.post("/v1/batches", content=pieces, headers=as_json), 413)


def test_only_a_batch_file_can_be_an_input(client: httpx.Client) -> None:
    wrong = ok(upload(client, purpose="user_data"))["id"]
    error = refused(client.post("/v1/batches", json=batch_body(wrong)), 400)

    assert error["param"] == "input_file_id"


def test_pages(client: httpx.Client) -> None:
    source = file_id(client)
    ids = [ok(client.post("/v1/batches", json=batch_body(source)))["id"] for _ in range(5)]
    first = ok(client.get("/v1/batches", params={"limit": 3}))
    query = {"limit": 3, "after": first["last_id"], "before": "x"}
    second = ok(client.get("/v1/batches", params=query))
    for wrong in ("limit=0", "limit=101", "after=x", "after=batch_" + "0" * 32):
        refused(client.get(f"/v1/batches?{wrong}"), 400)

    assert first["has_more"]
    assert not second["has_more"]
    assert [b["id"] for b in first["data"] + second["data"]] == ids[::-1]


def test_counts_and_usage_are_the_counters(site: Site, client: httpx.Client) -> None:
    batch = batch_id(client)
    set_job(site, batch, state="in_progress", total_count=10, model="small")
    with site.engine.begin() as connection:
        counted = {"succeeded": 4, "failed": 3, "cancelled": 2, "input_tokens": 70}
        more = {"output_tokens": 5, "cached_tokens": 1, "reasoning_tokens": 2}
        one = job_counters.c.job_id == parse_public_id(JOB, batch)
        connection.execute(sa.update(job_counters).where(one).values(**counted, **more))
    shown = ok(client.get(f"/v1/batches/{batch}"))

    assert shown["model"] == "small"
    assert shown["request_counts"] == {"total": 10, "completed": 4, "failed": 3}
    counts = {"succeeded": 4, "failed": 3, "cancelled": 2, "expired": 0}
    assert {**counts, "pending": 1, "error_count": 0}.items() <= shown["millrace"].items()
    assert shown["usage"] == {
        "input_tokens": 70,
        "input_tokens_details": {"cached_tokens": 1},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 75,
    }


def test_validation_errors_are_a_list(site: Site, client: httpx.Client) -> None:
    mistake = {"code": "invalid_json_line", "line": 1, "message": "no", "param": None}
    batch = batch_id(client)
    set_job(site, batch, state="failed", errors=[mistake], error_count=7)
    shown = ok(client.get(f"/v1/batches/{batch}"))

    assert shown["errors"] == {"object": "list", "data": [mistake]}
    assert shown["millrace"]["error_count"] == 7


def cancel(client: httpx.Client, batch: str) -> httpx.Response:
    """Cancel as the SDK does: no body, though its type is JSON."""
    return client.post(f"/v1/batches/{batch}/cancel", headers={"content-type": "application/json"})


def test_cancel_while_validating_leaves_the_close_to_intake(
    site: Site, client: httpx.Client
) -> None:
    batch = batch_id(client)
    first = ok(cancel(client, batch))
    assert ok(cancel(client, batch)) == first

    assert first["status"] == "cancelling"
    assert first["cancelling_at"] is not None
    assert outbox_rows(site, "results") == []
    events = [decode_row(JobEvent, row) for row in outbox_rows(site, "events")]
    assert [event.state for event in events] == ["validating", "cancelling"]


def test_cancel_in_progress_closes_once(site: Site, client: httpx.Client) -> None:
    batch = batch_id(client)
    set_job(site, batch, state="in_progress", total_count=3)
    ok(cancel(client, batch))
    ok(cancel(client, batch))

    (closed,) = [decode_row(JobClose, row) for row in outbox_rows(site, "results")]
    (control,) = [decode_row(JobControl, row) for row in outbox_rows(site, "control")]
    assert closed.reason is CloseReason.CANCELLED
    assert control.closed is CloseReason.CANCELLED


def test_cancel_closes_no_job_that_is_settled_expiring_or_ended(
    site: Site, client: httpx.Client
) -> None:
    settled, expiring, ended = (batch_id(client) for _ in range(3))
    for batch in (settled, expiring):
        set_job(site, batch, state="in_progress", total_count=3)
    set_job(site, settled, state="finalizing", settled_at=sa.func.now())
    set_job(site, expiring, close_reason="expired")
    set_job(site, ended, state="failed")

    assert ok(cancel(client, settled))["status"] == "cancelling"
    shown = ok(cancel(client, expiring))
    assert (shown["status"], shown["cancelling_at"]) == ("in_progress", None)
    assert refused(cancel(client, ended), 400)["type"] == "invalid_request_error"
    assert outbox_rows(site, "results") == []
