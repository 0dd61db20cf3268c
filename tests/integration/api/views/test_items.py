"""Goal: an owner sees the status of every item by every route, and no other tenant does."""

import json
import threading
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from jobs.tables.jobs import jobs
from jobs.tables.retries import item_attempts, item_retries
from results.writer.copied_results import CopyWriter
from results.writer.open_work import run_all
from tests.integration.api.answers import ok, refused
from tests.integration.api.sites import Site
from tests.integration.api.views.batches import RunningBatch, add_batch
from tests.integration.results.outcomes import failed, outcome
from tests.integration.results.test_copied_results import add_copies

KEYS = {
    "id", "object", "batch_id", "index", "custom_id", "status", "status_is_derived", "attempts",
    "retry_at", "worker", "model_version", "status_code", "error", "usage", "finished_at",
    "failures", "copied_from", "waiting_reason", "stages", "millrace",
}  # fmt: skip


def mixed(site: Site) -> RunningBatch:
    """Twelve items: two ended, one waits for a retry, five are on the log, four are not."""
    batch = add_batch(site, 12)
    batch.emit(8)
    batch.write(outcome(0, attempt=2, cached_tokens=1), failed(3, status_code=429))
    with site.engine.begin() as connection:
        waiting = {"job_id": batch.job_id, "item_index": 5}
        soon = sa.text("now() + interval '1 minute'")
        connection.execute(item_retries.insert().values(**waiting, attempt=2, due_at=soon))
        failed_before = waiting | {"attempt": 1, "status_code": 500, "code": "http_500"}
        timed_out = failed_before | {"item_index": 6, "status_code": 0, "code": "item_timeout"}
        connection.execute(item_attempts.insert(), [failed_before, timed_out])
    return batch


def statuses(page: dict[str, Any]) -> list[tuple[int, str]]:
    return [(item["index"], item["status"]) for item in page["data"]]


def test_items_show_their_status(site: Site, client: httpx.Client) -> None:
    batch = mixed(site)
    page = ok(client.get(f"{batch.path}/items"))

    assert page["object"] == "list"
    assert page["has_more"] is False
    assert (page["first_id"], page["last_id"]) == (batch.item_id(0), batch.item_id(11))
    assert [status for _, status in statuses(page)] == [
        "succeeded", "queued", "queued", "failed", "queued", "retrying", "queued", "queued",
        "pending", "pending", "pending", "pending",
    ]  # fmt: skip
    ended, waiting, again = page["data"][0], page["data"][5], page["data"][6]
    assert all(item.keys() == KEYS for item in page["data"])
    assert (ended["custom_id"], ended["attempts"], ended["status_code"]) == ("request-0", 2, 200)
    assert ended["usage"]["input_tokens_details"] == {"cached_tokens": 1}
    assert (ended["status_is_derived"], waiting["status_is_derived"]) == (False, True)
    assert (waiting["attempts"], again["attempts"]) == (1, 1)
    assert waiting["retry_at"] > waiting["failures"][0]["failed_at"]
    assert again["failures"][0]["code"] == "item_timeout"
    assert page["data"][1]["model_version"] == "1"
    assert [item["waiting_reason"] for item in page["data"]] == [
        None, "fair_turn", "fair_turn", None, "fair_turn", "backoff", "fair_turn", "fair_turn",
        "window", "window", "window", "window",
    ]  # fmt: skip


def test_items_are_listed_by_status(site: Site, client: httpx.Client) -> None:
    batch = mixed(site)
    wanted = {
        "pending": [8, 9, 10, 11], "queued": [1, 2, 4, 6, 7], "dispatched": [], "retrying": [5],
        "succeeded": [0], "failed": [3], "cancelled": [], "expired": [],
    }  # fmt: skip
    for status, indexes in wanted.items():
        page = ok(client.get(f"{batch.path}/items?status={status}"))
        assert [index for index, _ in statuses(page)] == indexes, status
        assert {found for _, found in statuses(page)} <= {status}
    batch.close()
    page = ok(client.get(f"{batch.path}/items?status=cancelled&limit=100"))
    assert len(page["data"]) == 10


@pytest.mark.parametrize("status", ["", "&status=succeeded"])
def test_pages_have_each_item_once(site: Site, client: httpx.Client, status: str) -> None:
    batch = add_batch(site, 50)
    batch.write(*[outcome(index) for index in range(50)])
    seen: list[int] = []
    after = ""
    for _ in range(20):
        page = ok(client.get(f"{batch.path}/items?limit=7{status}{after}"))
        seen += [item["index"] for item in page["data"]]
        after = f"&after={page['last_id']}"
        if not page["has_more"]:
            break
    assert seen == list(range(50))


def test_a_rare_status_is_found_in_limited_steps(site: Site, client: httpx.Client) -> None:
    batch = add_batch(site, 250_000)
    batch.write(*[outcome(index) for index in (3, 120_001, 249_999)])
    seen: list[int] = []
    after, asked = "", 0
    while asked < 10:
        page = ok(client.get(f"{batch.path}/items?status=succeeded&limit=2{after}"))
        asked += 1
        seen += [item["index"] for item in page["data"]]
        after = f"&after={page['last_id']}"
        if not page["has_more"]:
            break
    assert seen == [3, 120_001, 249_999]
    assert asked <= 4


@pytest.mark.parametrize("index", [0, 5, 11])
def test_an_item_is_found_by_each_of_its_names(
    site: Site, client: httpx.Client, index: int
) -> None:
    batch = mixed(site)
    by_name = ok(client.get(f"{batch.path}/items/request-{index}"))
    by_id = ok(client.get(f"{batch.path}/items/{batch.item_id(index)}"))

    assert by_name == by_id
    assert by_name["index"] == index
    assert by_name["custom_id"] == f"request-{index}"
    assert by_name["sequence"] == (1 if index == 0 else None)


def test_an_item_is_found_without_its_input(site: Site, client: httpx.Client) -> None:
    batch = add_batch(site, 4)
    batch.write(outcome(1))
    batch.close()
    batch.finalise()
    site.objects.delete(batch.row.input_key)
    found = [ok(client.get(f"{batch.path}/items/request-{n}"))["status"] for n in range(4)]
    sequences = [ok(client.get(f"{batch.path}/items/request-{n}"))["sequence"] for n in (1, 0)]

    assert found == ["cancelled", "succeeded", "cancelled", "cancelled"]
    assert sequences == [1, 2]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=x", "limit"),
        ("status=done", "status"),
        ("status=succeeded&status=failed", "status"),
        ("status=%00", "status"),
        ("after=x", "after"),
        ("after=%00", "after"),
        ("after=batch_req_" + "0" * 40, "after"),
    ],
)
def test_invalid_parameters_are_named(
    site: Site, client: httpx.Client, query: str, param: str
) -> None:
    batch = add_batch(site, 3)
    error = refused(client.get(f"{batch.path}/items?{query}"), 400)
    assert (error["code"], error["param"]) == ("invalid_value", param)


def test_a_cursor_of_another_job_is_refused(site: Site, client: httpx.Client) -> None:
    batch, other = add_batch(site, 3), add_batch(site, 3)
    refused(client.get(f"{batch.path}/items?after={other.item_id(0)}"), 400)
    refused(client.get(f"{batch.path}/items?after={batch.item_id(3)}"), 400)
    error = refused(client.get(f"{batch.path}/items/{other.item_id(0)}"), 404)
    assert error["code"] == "item_not_found"


@pytest.mark.parametrize(
    ("query", "headers", "param"),
    [
        ("after=-1", {}, "after"),
        ("after=2147483648", {}, "after"),
        ("after=1e3", {}, "after"),
        ("limit=0", {}, "limit"),
        ("limit=10001", {}, "limit"),
        ("limit=5", {"accept": "text/event-stream"}, "limit"),
        ("", {"accept": "text/event-stream", "last-event-id": "-1"}, "Last-Event-ID"),
    ],
)
def test_invalid_positions_are_named(
    site: Site, client: httpx.Client, query: str, headers: dict[str, str], param: str
) -> None:
    batch = add_batch(site, 3)
    error = refused(client.get(f"{batch.path}/results?{query}", headers=headers), 400)
    assert (error["code"], error["param"]) == ("invalid_value", param)


PATHS = ["items", "items?status=failed", "items/request-0", "results", "audit", "audit?log=true"]


def test_a_stream_of_a_foreign_batch_is_refused(site: Site) -> None:
    path = f"{add_batch(site, 2).path}/results"
    with site.client(site.other_key) as other:
        answer = other.get(path, headers={"accept": "text/event-stream"})
    assert refused(answer, 404)["code"] == "batch_not_found"


def test_a_single_request_is_not_a_batch(site: Site, client: httpx.Client) -> None:
    batch = add_batch(site, 1, kind="request", input_file_id=None)
    for path in PATHS:
        refused(client.get(f"{batch.path}/{path}"), 404)


def test_a_copy_names_its_original(site: Site, client: httpx.Client) -> None:
    batch = add_batch(site, 3)
    batch.emit(3)
    with site.engine.begin() as connection:
        connection.execute(sa.update(jobs).values(deduplicate=True))
    add_copies(site.engine, batch.job_id, {1: 0})
    assert ok(client.get(f"{batch.path}/items/{batch.item_id(1)}"))["status"] == "queued"
    batch.write(outcome(0))
    copying = CopyWriter(site.engine).copy_steps({batch.job_id: [outcome(0)]}, [batch.job_id])
    run_all(copying, threading.Event())

    found = ok(client.get(f"{batch.path}/items"))["data"]
    line = client.get(f"{batch.path}/results").text.splitlines()[1]
    shown = ok(client.get(batch.path))
    assert [item["copied_from"] for item in found] == [None, batch.item_id(0), None]
    assert (found[1]["custom_id"], found[1]["attempts"]) == ("request-1", 0)
    assert found[1]["usage"]["total_tokens"] == 0
    assert json.loads(line)["custom_id"] == "request-1"
    assert shown["millrace"]["deduplicated_items"] == 1
    assert shown["usage"] == found[0]["usage"]
