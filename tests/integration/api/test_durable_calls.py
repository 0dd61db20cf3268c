"""Goal: a durable call is committed before it is sent, runs once, and keeps its answer."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from core.ids import SINGLE, parse_public_id
from core.outcomes import Outcome
from jobs.tables.idempotency import idempotency_keys
from tests.integration.api.answers import is_replay, ok, refused
from tests.integration.api.online_site import ASK, ENDPOINT, Online, OpenOnline
from tests.integration.api.pool import PlayedPool, answer_at_once, say_nothing
from tests.support.until import until, until_found
from topics.records.records import Chunk, ReplyEnd

KEY = "Idempotency-Key"


def test_a_call_with_a_key_is_answered_and_replayed(online: Online) -> None:
    def script(pool: PlayedPool, chunk: Chunk) -> None:
        online.record(chunk)
        answer_at_once(pool, chunk)

    online.pool.script = script
    first = online.call(Idempotency_Key="k")
    second = online.call(Idempotency_Key="k")
    changed = online.call({"n": 1}, Idempotency_Key="k")
    assert (ok(first), first.headers["x-millrace-durable"]) == ({"asked": ASK}, "true")
    assert (second.status_code, second.content) == (200, first.content)
    assert [is_replay(first), is_replay(second)] == [False, True]
    assert refused(changed, 422)["code"] == "idempotency_key_reused"
    chunk = online.pool.only_chunk()
    assert chunk.job.call is not None
    assert chunk.job.call.durable
    assert online.job_count() == 1
    assert len(online.site.stored()) == 1
    online.end()
    assert online.site.stored() == []


def test_a_concurrent_duplicate_is_refused_until_the_answer_exists(online: Online) -> None:
    online.pool.script = say_nothing
    with online.send(Idempotency_Key="k"):
        chunk = online.pool.only_chunk()
        twin = online.call(Idempotency_Key="k")
        assert refused(twin, 409)["code"] == "idempotency_key_in_flight"
        assert twin.headers["retry-after"] == "1"
        online.record(chunk)
        again = online.call(Idempotency_Key="k")
    assert ok(again) == {"asked": ASK}
    assert is_replay(again)
    assert online.job_count() == 1


def test_a_retry_waits_for_the_row_of_the_first_call(open_online: OpenOnline) -> None:
    """It gets the answer again; one that corrects a failed call runs."""
    online = open_online({"replay_wait_s": 10.0})
    first = online.call(Idempotency_Key="k")
    writer = threading.Timer(0.3, online.record, [online.pool.chunks[-1]])
    writer.start()
    again = online.call(Idempotency_Key="k")
    writer.join()
    assert (again.status_code, again.content) == (200, first.content)
    assert is_replay(again)

    online.pool.script = lambda pool, chunk: pool.reply(chunk, end=ReplyEnd(400, ENVELOPE))
    refused(online.call(Idempotency_Key="wrong"), 400)
    failed = {"outcome": Outcome.FAILED, "status_code": 400, "body": ENVELOPE}
    writer = threading.Timer(0.3, online.record, [online.pool.chunks[-1]], failed)
    writer.start()
    online.pool.script = answer_at_once
    corrected = online.call({"n": 1}, Idempotency_Key="wrong")
    writer.join()
    assert (corrected.status_code, is_replay(corrected)) == (200, False)


def test_a_replay_needs_no_capacity(open_online: OpenOnline) -> None:
    online = open_online(open_calls_per_tenant_max=1)
    ask = {"stream": True}
    first = online.call(Idempotency_Key="k")
    online.record(online.pool.only_chunk())
    online.pool.script = lambda pool, chunk: pool.reply(chunk, pieces=[b"{}"])
    with online.client.stream("POST", ENDPOINT, json=ASK | ask, headers={KEY: "s"}) as answer:
        pieces = answer.iter_raw()
        assert next(pieces) == b"data: {}\n\n"
        assert refused(online.call(), 429)["code"] == "queue_full"
        assert refused(online.call(Idempotency_Key="n"), 429)["code"] == "queue_full"
        assert refused(online.call(ask, Idempotency_Key="m"), 429)["code"] == "queue_full"
        again = online.call(Idempotency_Key="k")
        assert (again.status_code, again.content) == (200, first.content)
        refused(online.call({"n": 1}, Idempotency_Key="k"), 422)
        refused(online.call(ask, Idempotency_Key="s"), 409)
    assert online.job_count() == 1
    assert len(online.site.stored()) == 1


CHANGES: list[dict[str, Any]] = [{}, {"n": 1}, {"n": 1, "stream": True}]
ENVELOPE = b'{"error":{"message":"no","type":"t","param":null,"code":"c"}}'


@pytest.mark.parametrize("change", CHANGES)
def test_a_failure_frees_the_key(online: Online, change: dict[str, Any]) -> None:
    online.pool.script = say_nothing
    with online.send(Idempotency_Key="k"):
        chunk = online.pool.only_chunk()
    online.record(chunk, outcome=Outcome.FAILED, status_code=400, body=ENVELOPE)
    online.pool.script = answer_at_once
    again = online.call(change, Idempotency_Key="k")
    third = online.call({"n": 3}, Idempotency_Key="k")
    assert (again.status_code, is_replay(again)) == (200, False)
    assert refused(third, 422)["code"] == "idempotency_key_reused"
    assert len(online.pool.chunks) == 2


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    ("header", "code"),
    [
        ("X-Request-Timeout-Ms", "deadline_exceeded"),
        ("X-Request-Queue-Timeout-Ms", "queue_timeout"),
    ],
)
def test_a_key_expires_with_the_deadline_of_its_call(
    online: Online, header: str, code: str, change: dict[str, Any]
) -> None:
    online.pool.script = say_nothing
    late = online.call(Idempotency_Key="k", **{header: "300"})
    assert refused(late, 504)["code"] == code
    online.pool.script = answer_at_once
    again = online.call(change, Idempotency_Key="k")
    assert (again.status_code, is_replay(again)) == (200, False)


def test_one_of_two_corrected_calls_gets_the_key(online: Online) -> None:
    online.pool.script = say_nothing
    refused(online.call(Idempotency_Key="k", X_Request_Timeout_Ms="100"), 504)

    def corrected(number: int) -> httpx.Response:
        return online.call({"n": number}, Idempotency_Key="k", Prefer="wait=1")

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(corrected, range(1, 9)))
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses[0] == 202
    assert set(statuses[1:]) <= {409, 422}
    assert online.job_count() == 2


def test_a_failed_stream_frees_its_key_before_its_end(online: Online) -> None:
    ask = {"stream": True}
    for number in range(10):
        online.pool.script = lambda pool, chunk: pool.reply(
            chunk, end=ReplyEnd(status_code=400, body=ENVELOPE)
        )
        refused(online.call(ask, Idempotency_Key=f"s{number}"), 400)
        online.pool.script = answer_at_once
        corrected = online.call(ask | {"n": 1}, Idempotency_Key=f"s{number}")
        assert corrected.status_code == 200, corrected.text


def test_a_call_in_the_background(online: Online) -> None:
    online.pool.script = lambda pool, chunk: online.record(chunk)
    answer = online.call({"background": True}, Idempotency_Key="k")
    accepted = ok(answer, 202)
    assert answer.headers["location"] == f"/v1/jobs/{accepted['id']}"
    assert accepted | {"id": ""} == {"id": "", "object": "job", "status": "in_progress"}
    job = until_found(lambda: answered(online, accepted["id"]))
    assert job["response"]["status_code"] == 200
    assert job["response"]["body"] == {"asked": ASK}
    assert (job["model"], job["model_version"]) == ("org/online", "7")
    assert job["usage"]["total_tokens"] == 5
    online.end()
    ended = shown(online, accepted["id"])
    assert (ended["status"], ended["error"]) == ("completed", None)
    again = online.call({"background": True}, Idempotency_Key="k")
    assert (again.status_code, again.content) == (202, answer.content)
    assert is_replay(again)
    assert online.pool.only_chunk().items[0].body == b'{"model":"org/online","messages":[]}'
    assert accepted["id"] == f"job_{online.pool.only_chunk().job.job_id.hex}"


def answered(online: Online, job: str) -> dict[str, Any] | None:
    found = shown(online, job)
    return found if found["response"] else None


def shown(online: Online, job: str) -> dict[str, Any]:
    found: dict[str, Any] = ok(online.client.get(f"/v1/jobs/{job}"))
    return found


def test_an_sdk_retry_in_the_background_is_one_job(online: Online) -> None:
    online.pool.script = say_nothing
    ask = {"background": True}
    ids = [
        ok(online.call(ask, x_stainless_retry_count=tries), 202)["id"]
        for tries in ("0", "1", "2", "0")
    ]
    assert len(set(ids[:3])) == 1
    assert ids[3] != ids[0]


def test_a_preferred_wait_ends_with_a_202_that_is_replayed(online: Online) -> None:
    online.pool.script = say_nothing
    began_s = time.monotonic()
    answer = online.call(Prefer="wait=1", Idempotency_Key="k")
    assert 0.9 < time.monotonic() - began_s < 20.0
    accepted = ok(answer, 202)
    chunk = online.pool.only_chunk()
    online.record(chunk)
    until(lambda: key_state(online) == "saved")
    again = online.call(Prefer="wait=1", Idempotency_Key="k")
    assert (again.status_code, again.content) == (202, answer.content)
    assert shown(online, accepted["id"])["response"]["body"] == {"asked": ASK}


def key_state(online: Online) -> str | None:
    with online.site.engine.connect() as connection:
        mine = idempotency_keys.c.tenant_id == online.site.tenant_id
        return connection.scalar(sa.select(idempotency_keys.c.state).where(mine))


def test_a_reply_within_the_preferred_wait_is_sent(online: Online) -> None:
    lines = [("prefer", "wait=2"), ("prefer", "respond-async")]  # which are one list
    answer = online.client.post(ENDPOINT, json=ASK, headers=lines)
    assert ok(answer) == {"asked": ASK}
    assert answer.headers["preference-applied"] == "wait=2"
    assert online.job_count() == 1


def test_a_wait_longer_than_allowed_is_capped(online: Online) -> None:
    online.pool.script = say_nothing
    answer = online.call(Prefer="wait=" + "9" * 1000)
    ok(answer, 202)
    assert answer.headers["preference-applied"] == "wait=2"


def test_a_cancelled_job(online: Online) -> None:
    online.pool.script = say_nothing
    with online.site.client(online.site.other_key) as other:
        job = ok(online.call({"background": True}), 202)["id"]
        refused(other.delete(f"/v1/jobs/{job}"), 404)
        assert ok(online.client.delete(f"/v1/jobs/{job}"))["status"] == "cancelling"
        request_id = parse_public_id(SINGLE, job)
        assert request_id is not None
        online.pool.wait_for(lambda: online.pool.aborted(request_id))
        assert ok(online.client.delete(f"/v1/jobs/{job}"))["status"] == "cancelling"


def test_an_answered_job_is_deleted(online: Online) -> None:
    """Its answer is gone, its key is free, and the deletion is recorded."""

    def script(pool: PlayedPool, chunk: Chunk) -> None:
        online.record(chunk)
        answer_at_once(pool, chunk)

    online.pool.script = script
    ok(online.call(Idempotency_Key="k"))
    path = f"/v1/jobs/job_{online.pool.only_chunk().job.job_id.hex}"
    online.end()
    assert ok(online.client.get(path))["response"]["body"] == {"asked": ASK}
    with online.site.client(online.site.other_key) as other:
        refused(other.delete(path), 404)
    kept = refused(online.client.delete(path, params={"cancel_only": True}), 400)
    assert kept["code"] == "job_ended"

    deleted = {"id": path.removeprefix("/v1/jobs/"), "object": "job", "deleted": True}
    assert ok(online.client.delete(path)) == deleted
    for answer in (online.client.get(path), online.client.delete(path)):
        assert refused(answer, 404)["code"] == "job_not_found"
    newest = ok(online.client.get("/v1/audit_log?limit=1"))["data"][0]
    assert (newest["action"], newest["subject"]) == ("request.deleted", deleted["id"])
    again = online.call(Idempotency_Key="k")
    assert ok(again) == {"asked": ASK}
    assert not is_replay(again)


def test_batches_and_single_requests_are_separate(online: Online) -> None:
    job = ok(online.call({"background": True}), 202)["id"]
    refused(online.client.get(f"/v1/batches/{job}"), 404)
    refused(online.client.get(f"/v1/batches/batch_{job.removeprefix('job_')}"), 404)
    assert ok(online.client.get("/v1/batches"))["data"] == []
    for wrong in ("job_" + "0" * 32, "nonsense"):
        assert refused(online.client.get(f"/v1/jobs/{wrong}"), 404)["code"] == "job_not_found"


def test_a_stream_with_a_key_is_replayed(online: Online) -> None:
    ask = {"stream": True}
    first = online.call(ask, Idempotency_Key="s")
    second = online.call(ask, Idempotency_Key="s")
    changed = online.call(Idempotency_Key="s")
    assert first.status_code == 200
    assert first.headers["x-millrace-durable"] == "false"
    assert first.text.endswith("data: [DONE]\n\n")
    assert (second.status_code, second.content) == (200, first.content)
    for name in ("content-type", "cache-control", "x-accel-buffering"):
        assert second.headers[name] == first.headers[name]
    assert is_replay(second)
    refused(changed, 422)
    assert len(online.pool.chunks) == 1


def test_a_stream_holds_its_key_until_its_client_disconnects(online: Online) -> None:
    online.pool.script = lambda pool, chunk: pool.reply(chunk, pieces=[b"{}"])
    ask = {"stream": True}
    with online.client.stream("POST", ENDPOINT, json=ASK | ask, headers={KEY: "s"}) as answer:
        pieces = answer.iter_raw()  # held: one that is dropped closes the connection
        assert next(pieces) == b"data: {}\n\n"
        refused(online.call(ask, Idempotency_Key="s"), 409)
    online.pool.script = answer_at_once
    until(lambda: online.call(ask, Idempotency_Key="s").status_code == 200)
