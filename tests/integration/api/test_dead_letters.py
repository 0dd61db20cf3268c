"""Goal: owners see why items failed, and redrive them, edited, in a new batch."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import httpx
import pytest
import sqlalchemy as sa

from core.ids import FILE, JOB, parse_public_id
from core.outcomes import Outcome
from jobs.recovery.retry_policy import RetryRules
from jobs.store import redrive
from jobs.tables.files import files, job_inputs
from jobs.tables.jobs import jobs
from results.writer.day_partitions import DayPartitions
from results.writer.item_writer import ItemWriter
from storage.objects.local_object_store import LocalUpload
from tests.integration.api.answers import batch_body, file_id, ok, refused
from tests.integration.api.sites import Site
from topics.records.records import ItemOutcome

COUNT = 6
PATH = "/v1/dead_letters/redrive"
BROKEN = b'{"error":{"message":"no","type":"server_error","param":null,"code":"broken"}}'


def line(index: int) -> bytes:
    body = {"model": "org/small", "input": f"text {index}", "dimensions": 8}
    return json.dumps(
        {"custom_id": f"id-{index}", "method": "POST", "url": "/v1/embeddings", "body": body}
    ).encode()


LINES = [line(index) for index in range(COUNT)]
OFFSETS = [sum(len(text) + 1 for text in LINES[:index]) for index in range(COUNT)]


def failure(index: int, **fields: Any) -> ItemOutcome:
    given: dict[str, Any] = {
        "index": index,
        "custom_id": f"id-{index}",
        "outcome": Outcome.FAILED,
        "status_code": 400,
        "body": b'{"error":{"code":"wrong"}}',
        "offset": OFFSETS[index],
    }
    return ItemOutcome(**(given | fields))


def failed_batch(site: Site, client: httpx.Client, *outcomes: ItemOutcome, **fields: Any) -> str:
    """A running batch in which these items failed, in one commit each."""
    source = file_id(client, b"\n".join(LINES) + b"\n")
    batch: str = ok(client.post("/v1/batches", json=batch_body(source, **fields)))["id"]
    job_id = job_of(batch)
    with site.engine.begin() as connection:
        started = {
            "state": "in_progress",
            "total_count": COUNT,
            "model": "org/small",
            "model_version": "1",
            "in_progress_at": sa.func.now(),
        }
        connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(**started))
    rules = RetryRules(attempts_max=2)
    for outcome in outcomes:
        partitions = DayPartitions(site.engine)
        ItemWriter(site.engine, partitions, retries=rules).write({job_id: [outcome]})
    return batch


def job_of(batch: str) -> UUID:
    job_id = parse_public_id(JOB, batch)
    assert job_id is not None
    return job_id


def input_of(site: Site, batch: dict[str, Any]) -> list[bytes]:
    query = sa.select(files.c.object_key).where(
        files.c.id == parse_public_id(FILE, batch["input_file_id"])
    )
    with site.engine.connect() as connection:
        key = connection.scalars(query).one()
    return b"".join(site.objects.read(key)).splitlines()


def test_a_dead_letter_shows_all_attempts(site: Site, client: httpx.Client) -> None:
    spent = {"status_code": 500, "body": BROKEN, "retryable": True}
    batch = failed_batch(
        site, client, failure(3, **spent), failure(3, **spent, attempt=2), failure(1)
    )
    found = ok(client.get("/v1/dead_letters", params={"batch": batch}))
    shown = ok(client.get(f"/v1/dead_letters/{found['data'][1]['id']}"))
    assert ok(client.get("/v1/dead_letters"))["data"] == found["data"]

    first, second = found["data"]
    assert first == {
        "id": f"dead_{job_of(batch).hex}_1",
        "object": "dead_letter",
        "batch_id": batch,
        "index": 1,
        "custom_id": "id-1",
        "code": "wrong",
        "message": None,
        "status_code": 400,
        "attempts": 1,
        "failed_at": first["failed_at"],
        "redriven_by": None,
    }
    assert (second["index"], second["code"], second["attempts"]) == (3, "broken", 2)
    assert shown["response"] == json.loads(BROKEN)
    assert shown["endpoint"] == "/v1/embeddings"
    assert [(t["attempt"], t["status_code"], t["code"]) for t in shown["history"]] == [
        (1, 500, "broken"),
        (2, 500, "broken"),
    ]


def test_lists_are_paged_in_order(site: Site, client: httpx.Client) -> None:
    old = failed_batch(site, client, failure(4), failure(0))
    new = failed_batch(site, client, failure(2, body=b"", error_code="record_unreadable"))

    def pages(**params: str) -> list[str]:
        seen: list[str] = []
        after: dict[str, str] = {}
        while True:
            page = ok(client.get("/v1/dead_letters", params={"limit": 1, **params, **after}))
            seen += [f"{d['batch_id'] == new} {d['index']}" for d in page["data"]]
            if not page["has_more"]:
                return seen
            after = {"after": page["last_id"]}

    assert pages() == ["True 2", "False 0", "False 4"]
    assert pages(batch=old) == ["False 0", "False 4"]
    assert ok(client.get("/v1/dead_letters", params={"batch": new}))["data"][0]["code"] == (
        "record_unreadable"
    )


@pytest.mark.parametrize("far", [1000, 0])
def test_a_batch_is_redriven_once_and_byte_for_byte(
    site: Site, client: httpx.Client, monkeypatch: pytest.MonkeyPatch, far: int
) -> None:
    monkeypatch.setattr(redrive, "_FAR_LINES_MAX", far)
    batch = failed_batch(site, client, failure(5), failure(2), failure(0), metadata={"team": "a"})
    new = ok(client.post("/v1/dead_letters/redrive", json={"batch": batch}))
    letters = ok(client.get("/v1/dead_letters", params={"batch": batch}))["data"]
    nothing = refused(client.post("/v1/dead_letters/redrive", json={"batch": batch}), 404)

    assert input_of(site, new) == [LINES[0], LINES[2], LINES[5]]
    assert (new["status"], new["endpoint"]) == ("validating", "/v1/embeddings")
    assert new["metadata"] == {"team": "a", "redrive_of": batch}
    assert {letter["redriven_by"] for letter in letters} == {new["id"]}
    assert nothing["code"] == "dead_letter_not_found"
    assert "redriven already" in (nothing["message"] or "")


def test_overlapping_redrives_share_no_item(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have chosen before either commits; what was named may run again."""
    both_write = threading.Barrier(2, timeout=20)
    begin = site.objects.begin_upload

    def begun(key: str) -> LocalUpload:
        both_write.wait()
        return begin(key)

    with site.client() as client, ThreadPoolExecutor(2) as threads:
        batch = failed_batch(site, client, failure(2), failure(0))
        before = len(site.stored())
        monkeypatch.setattr(site.objects, "begin_upload", begun)

        def redriven(asked: dict[str, Any]) -> list[httpx.Response]:
            calls = [threads.submit(client.post, PATH, json=asked) for _ in range(2)]
            return sorted((call.result() for call in calls), key=lambda a: a.status_code)

        taken, late = redriven({"batch": batch})
        named = redriven({"ids": [f"dead_{job_of(batch).hex}_0"]})
    ok(taken)
    error = refused(late, 404)
    assert error["code"] == "dead_letter_not_found"
    assert "in the meantime" in (error["message"] or "")
    assert [answer.status_code for answer in named] == [200, 200]
    assert len(site.stored()) == before + 3


def test_a_redrive_whose_file_is_refused_marks_no_item(site: Site, client: httpx.Client) -> None:
    batch = failed_batch(site, client, failure(2), failure(0))
    ask = {"batch": batch}
    wrong = ok(client.post("/v1/dead_letters/redrive", json=ask | {"edits": {"model": "none"}}))
    with site.engine.begin() as connection:  # as intake does with a model that is none
        refusal = sa.update(jobs).where(jobs.c.id == job_of(wrong["id"]))
        connection.execute(refusal.values(state="failed", failed_at=sa.func.now()))
    right = ok(client.post("/v1/dead_letters/redrive", json=ask))

    assert input_of(site, right) == [LINES[0], LINES[2]]


def test_selected_lines_are_edited(site: Site, client: httpx.Client) -> None:
    batch = failed_batch(site, client, failure(1, offset=0), failure(2), failure(3))
    ids = [f"dead_{job_of(batch).hex}_{index}" for index in (2, 1)]
    asked = {
        "ids": ids,
        "edits": {"dimensions": None, "user": "u", "extra": {"a": {"b": 1}}},
        "completion_window": "2h",
        "metadata": {"why": "shorter"},
    }
    new = ok(client.post("/v1/dead_letters/redrive", json=asked))
    again = ok(client.post("/v1/dead_letters/redrive", json={"ids": ids[:1]}))

    first, second = (json.loads(text) for text in input_of(site, new))
    assert (first["custom_id"], second["custom_id"]) == ("id-1", "id-2")
    assert first["body"] == {
        "model": "org/small",
        "input": "text 1",
        "user": "u",
        "extra": {"a": {"b": 1}},
    }
    assert new["completion_window"] == "2h"
    assert new["metadata"] == {"why": "shorter", "redrive_of": batch}
    assert input_of(site, again) == [LINES[2]]


def test_lines_of_appended_files_are_found_there(site: Site, client: httpx.Client) -> None:
    later = failure(3, offset=len(LINES[4]) + 1)
    batch = failed_batch(site, client, failure(1), later, failure(2, offset=0))
    with site.engine.begin() as connection:
        for number, first in ((1, 2), (2, 4)):
            file = parse_public_id(FILE, file_id(client, b"\n".join(LINES[4:]) + b"\n"))
            key = connection.scalar(sa.select(files.c.object_key).where(files.c.id == file))
            connection.execute(
                job_inputs.insert().values(
                    job_id=job_of(batch),
                    number=number,
                    file_id=file,
                    object_key=key,
                    size_bytes=1,
                    state="accepted",
                    first_index=first,
                    item_count=2,
                )
            )
    new = ok(client.post("/v1/dead_letters/redrive", json={"batch": batch}))
    assert input_of(site, new) == [LINES[1], LINES[4], LINES[5]]


def test_a_redrive_without_its_input_is_refused(site: Site, client: httpx.Client) -> None:
    batch = failed_batch(site, client, failure(1))
    with site.engine.connect() as connection:
        key = connection.scalar(sa.select(jobs.c.input_key).where(jobs.c.id == job_of(batch)))
    assert key is not None
    site.objects.delete(key)
    before = site.stored()
    gone = refused(client.post("/v1/dead_letters/redrive", json={"batch": batch}), 410)
    assert gone["code"] == "input_gone"
    assert site.stored() == before


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({}, 400),
        ({"batch": "batch_" + "0" * 32, "ids": []}, 400),
        ({"batch": "nope"}, 404),
        ({"batch": "batch_" + "0" * 32}, 404),
        ({"ids": []}, 400),
        ({"ids": ["nope"]}, 404),
        ({"ids": ["dead_" + "0" * 32 + "_1"]}, 404),
        ({"ids": ["dead_" + "0" * 32 + "_01"]}, 404),
        ({"ids": ["dead_" + "0" * 32 + "_9999999999"]}, 404),
        ({"ids": [f"dead_{digit * 32}_1" for digit in "01"]}, 400),
        ({"ids": "dead"}, 400),
        ({"batch": "batch_" + "0" * 32, "edits": []}, 400),
    ],
)
def test_an_invalid_redrive_is_refused(
    client: httpx.Client, asked: dict[str, Any], status: int
) -> None:
    refused(client.post("/v1/dead_letters/redrive", json=asked), status)


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"batch": "nope"}, 404),
        ({"after": "nope"}, 400),
        ({"limit": 0}, 400),
        ({"limit": 101}, 400),
    ],
)
def test_an_invalid_list_is_refused(
    client: httpx.Client, query: dict[str, Any], status: int
) -> None:
    refused(client.get("/v1/dead_letters", params=query), status)
