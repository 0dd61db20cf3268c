"""Goal: owners control their batches over HTTP, other tenants cannot, and errors name the field."""

import time
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from core.ids import FILE, JOB, parse_public_id
from jobs.tables.files import job_inputs
from tenancy.tables import tenants
from tests.integration.api.answers import batch_body, batch_id, file_id, ok, refused
from tests.integration.api.sites import Site
from tests.integration.api.test_batches import set_job
from tests.integration.jobs.rows import execute

TRIES = "x-stainless-retry-count"
ACTIONS = ("pause", "resume", "seal", "append", "")


def created(site: Site, **fields: object) -> dict[str, Any]:
    with site.client() as client:
        batch: dict[str, Any] = ok(
            client.post("/v1/batches", json=batch_body(file_id(client), **fields))
        )
    return batch


def posted(site: Site, batch: str, action: str = "", body: object = None) -> dict[str, Any]:
    with site.client() as client:
        path = f"/v1/batches/{batch}/{action}".rstrip("/")
        answer: dict[str, Any] = ok(client.post(path, json=body))
    return answer


def own(batch: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = batch["millrace"]
    return found


def test_a_batch_shows_its_controls(site: Site) -> None:
    batch = created(site)
    assert {k: v for k, v in own(batch).items() if k not in {"succeeded", "failed"}} == {
        "cancelled": 0,
        "expired": 0,
        "pending": 0,
        "error_count": 0,
        "deduplicate": False,
        "deduplicated_items": 0,
        "eta": None,
        "waiting": None,
        "priority": 5,
        "paused_at": None,
        "quarantined_until": None,
        "not_before": None,
        "bulk_hours": None,
        "opens_at": None,
        "expected_late": False,
        "models": None,
        "close_reason": None,
        "sealed": True,
        "appended_files": [],
        "max_failed_items": None,
        "max_failed_ratio": None,
        "failed_ratio_sample": None,
        "max_total_tokens": None,
    }
    given = {
        "priority": 9,
        "sealed": False,
        "deduplicate": True,
        "max_failed_items": 0,
        "max_failed_ratio": 0.5,
        "failed_ratio_sample": 10,
        "max_total_tokens": 2**40,
    }
    assert own(created(site, **given)).items() >= given.items()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("priority", 10),
        ("priority", -1),
        ("max_failed_items", -1),
        ("max_failed_items", 2**31),
        ("max_failed_ratio", 1.01),
        ("failed_ratio_sample", 0),
        ("max_total_tokens", 0),
        ("max_total_tokens", 2**63),
    ],
)
def test_an_invalid_budget_is_refused(client: httpx.Client, field: str, value: object) -> None:
    body = batch_body(file_id(client), **{field: value})
    error = refused(client.post("/v1/batches", json=body), 400)
    assert (error["param"], error["code"]) == (field, "invalid_value")


def test_pause_and_resume(site: Site) -> None:
    batch = created(site)["id"]
    assert own(posted(site, batch, "pause"))["paused_at"] is not None
    assert posted(site, batch, "pause")["status"] == "validating"
    assert own(posted(site, batch, "resume"))["paused_at"] is None


def test_deadline_and_priority_change(site: Site) -> None:
    batch = created(site)
    changed = posted(site, batch["id"], body={"completion_window": "2h", "priority": 1})
    assert changed["expires_at"] - batch["created_at"] == 7200
    assert (changed["completion_window"], own(changed)["priority"]) == ("2h", 1)
    moment = batch["created_at"] + 600
    moved = posted(site, batch["id"], body={"expires_at": moment})
    assert moved["expires_at"] == moment
    assert moved["completion_window"] == f"{moment - batch['created_at']}s"
    assert posted(site, batch["id"], body={})["expires_at"] == moment


def test_a_batch_shows_when_its_items_may_run(site: Site) -> None:
    now = created(site)["created_at"]
    shown = own(created(site, not_before=now + 3600))
    assert (shown["not_before"], shown["opens_at"]) == (now + 3600, now + 3600)
    past = own(created(site, not_before=now - 3600))
    assert (past["not_before"], past["opens_at"]) == (now - 3600, None)
    # Open from the full hour after the next one on, for 59 minutes.
    hour = time.gmtime(now + 7200).tm_hour
    hours = f"{hour:02}:00-{hour:02}:59 UTC"
    batch = created(site, bulk_hours=hours)
    opens = now - now % 3600 + 7200
    assert (own(batch)["bulk_hours"], own(batch)["opens_at"]) == (hours, opens)
    path = batch["id"]
    later = posted(site, path, body={"not_before": opens + 60})
    assert (own(later)["not_before"], own(later)["opens_at"]) == (opens + 60, opens + 60)
    removed = own(posted(site, path, body={"not_before": 0, "bulk_hours": ""}))
    assert (removed["not_before"], removed["bulk_hours"], removed["opens_at"]) == (None,) * 3
    execute(site.engine, sa.update(tenants).values(bulk_hours=hours))
    with site.client() as client:
        assert own(ok(client.get(f"/v1/batches/{path}")))["opens_at"] == opens


def test_a_schedule_without_time_before_the_deadline_is_refused(
    site: Site, client: httpx.Client
) -> None:
    file = file_id(client)
    now = created(site)["created_at"]
    closed = time.gmtime(now - 2 * 3600).tm_hour
    hours = f"{closed:02}:00-{closed:02}:30 UTC"

    def refusal(path: str = "/v1/batches", **fields: object) -> tuple[str, str]:
        body = fields if path != "/v1/batches" else batch_body(file, **fields)
        error = refused(client.post(path, json=body), 400)
        return str(error["param"]), str(error["message"])

    for wrong in (now + 86_400 + 60, 2**70, -(2**70)):
        assert refusal(not_before=wrong)[0] == "not_before"
    assert refusal(bulk_hours="22:00-06:00")[0] == "bulk_hours"
    param, message = refusal(bulk_hours="22:00-06:00 Mars")
    assert (param, message[:6]) == ("bulk_hours", "'Mars'")
    param, message = refusal(bulk_hours=hours, completion_window="1h")
    assert param == "bulk_hours"
    assert "deadline" in message
    path = f"/v1/batches/{created(site, not_before=now + 7200)['id']}"
    assert refusal(path, completion_window="1h")[0] == "not_before"
    assert refusal(path, not_before=now + 86_400 + 60)[0] == "not_before"
    assert refusal(path, bulk_hours=hours, completion_window="3h")[0] == "bulk_hours"
    execute(site.engine, sa.update(tenants).values(bulk_hours=hours))
    assert refusal(completion_window="1h")[0] == "completion_window"


def test_a_deadline_may_be_extended_while_hours_are_closed(
    site: Site, client: httpx.Client
) -> None:
    batch = created(site, completion_window="1h")
    closed = time.gmtime(batch["created_at"] - 2 * 3600).tm_hour
    execute(site.engine, sa.update(tenants).values(bulk_hours=f"{closed:02}:00-{closed:02}:30 UTC"))
    path = f"/v1/batches/{batch['id']}"
    later = ok(client.post(path, json={"completion_window": "2h"}))
    assert later["expires_at"] == batch["created_at"] + 2 * 3600
    assert own(later)["opens_at"] > later["expires_at"]
    error = refused(client.post(path, json={"completion_window": "1h"}), 400)
    assert error["param"] == "completion_window"


def test_another_deadline_ends_the_expectation_to_be_late(site: Site, client: httpx.Client) -> None:
    batch = batch_id(client)
    set_job(site, batch, expected_late=True)
    assert own(ok(client.get(f"/v1/batches/{batch}")))["expected_late"] is True
    assert own(posted(site, batch, body={"priority": 3}))["expected_late"] is True
    later = posted(site, batch, body={"completion_window": "2d"})
    assert own(later)["expected_late"] is False


def test_files_are_appended_until_the_batch_is_sealed(site: Site, client: httpx.Client) -> None:
    batch = created(site, sealed=False)["id"]
    second = file_id(client, b"[]\n")
    appended = posted(site, batch, "append", {"input_file_id": second})
    (file,) = own(appended)["appended_files"]
    assert (file["file_id"], file["state"]) == (second, "validating")
    assert own(posted(site, batch, "seal"))["sealed"] is True
    answer = client.post(f"/v1/batches/{batch}/append", json={"input_file_id": second})
    assert refused(answer, 400)["code"] == "batch_sealed"
    unknown = client.post(f"/v1/batches/{batch}/append", json={"input_file_id": "file-1"})
    assert refused(unknown, 400)["code"] == "batch_sealed"


def test_an_appended_file_is_kept_while_its_job_reads_it(site: Site, client: httpx.Client) -> None:
    batch = created(site, sealed=False)["id"]
    second = file_id(client)
    posted(site, batch, "append", {"input_file_id": second})
    ok(client.delete(f"/v1/files/{second}"))
    shown = ok(client.get(f"/v1/batches/{batch}"))
    assert own(shown)["appended_files"][0]["file_id"] == second
    assert len(site.stored()) == 2


@pytest.mark.parametrize("action", ACTIONS)
def test_an_ended_batch_cannot_be_changed(site: Site, client: httpx.Client, action: str) -> None:
    batch = batch_id(client)
    set_job(site, batch, state="failed")
    body = {"input_file_id": file_id(client), "priority": 3}
    answer = client.post(f"/v1/batches/{batch}/{action}".rstrip("/"), json=body)
    assert refused(answer, 400)["code"] == "batch_not_open"


@pytest.mark.parametrize(
    ("wish", "body", "other", "other_body"),
    [
        ("/pause", None, "/resume", None),
        ("/resume", None, "/pause", None),
        ("", {"priority": 9}, "", {"priority": 1}),
        ("", {"completion_window": "2h"}, "", {"completion_window": "3h"}),
    ],
)
def test_a_retry_whose_first_attempt_was_lost_is_executed(
    site: Site, client: httpx.Client, wish: str, body: object, other: str, other_body: object
) -> None:
    """Its second try is no repeat of the same wish before the other one."""
    path = f"/v1/batches/{created(site)['id']}"
    ok(client.post(path + wish, json=body, headers={TRIES: "0"}))
    between = ok(client.post(path + other, json=other_body, headers={TRIES: "0"}))
    answer = client.post(path + wish, json=body, headers={TRIES: "1"})
    assert ok(answer) == ok(client.get(path))
    assert "idempotent-replayed" not in answer.headers
    assert ok(answer) != between


def test_a_retry_of_a_final_action_is_replayed(site: Site, client: httpx.Client) -> None:
    batch = created(site, sealed=False)["id"]
    body = {"input_file_id": file_id(client)}
    answers = [
        client.post(f"/v1/batches/{batch}/append", json=body, headers={TRIES: tries})
        for tries in "01"
    ]
    shown = ok(client.get(f"/v1/batches/{batch}"))
    assert ok(answers[0]) == ok(answers[1])
    assert len(own(shown)["appended_files"]) == 1


def test_errors_of_appended_files_are_shown_of_their_batch_only(
    site: Site, client: httpx.Client
) -> None:
    batch = created(site, sealed=False)["id"]
    error = {"code": "c", "message": "m", "param": None, "line": 1}
    row = {
        "job_id": parse_public_id(JOB, batch),
        "file_id": parse_public_id(FILE, file_id(client)),
        "object_key": "k",
        "size_bytes": 0,
    }
    refusal = {"state": "refused", "errors": [error] * 100, "error_count": 150}
    with site.engine.begin() as connection:
        connection.execute(
            job_inputs.insert(), [row | refusal | {"number": 1 + n} for n in range(12)]
        )
        connection.execute(job_inputs.insert(), row | {"number": 13, "state": "validating"})
    (listed,) = ok(client.get("/v1/batches?limit=1"))["data"]
    shown = ok(client.get(f"/v1/batches/{batch}"))
    for one in (listed, posted(site, batch, "pause")):
        files = own(one)["appended_files"]
        assert [file["errors"] for file in files] == [None] * 13
        assert [file["error_count"] for file in files] == [150] * 12 + [0]
    files = own(shown)["appended_files"]
    assert [len(file["errors"] or ()) for file in files] == [0] * 2 + [100] * 10 + [0]
    assert files[2]["errors"][0] == error


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"priority": 10}, "priority"),
        ({"completion_window": "1y"}, "completion_window"),
        ({"completion_window": "1h", "expires_at": 5}, "completion_window"),
        ({"expires_at": 5}, "expires_at"),
        ({"expires_at": 2**80}, None),
        ({"priority": "high"}, "priority"),
    ],
)
def test_an_invalid_change_is_refused(
    site: Site, client: httpx.Client, body: dict[str, object], param: str | None
) -> None:
    batch = created(site)["id"]
    error = refused(client.post(f"/v1/batches/{batch}", json=body), 400)
    assert param is None or error["param"] == param
