"""Goal: a durable call is committed before it is sent, runs once, and keeps its answer."""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from api.online.settings import OnlineSettings
from core.ids import SINGLE, parse_public_id
from core.outcomes import Outcome
from jobs.tables.idempotency import idempotency_keys
from storage.objects.object_store import ObjectStore
from tests.integration.api.answers import ok, refused
from tests.integration.api.online_site import ASK, ENDPOINT, Online, opened
from tests.integration.api.pool import PlayedPool, answer_at_once, say_nothing
from tests.support.until import until, until_found
from topics.records.records import Chunk, ReplyEnd
from topics.settings import KafkaSettings

KEY = "Idempotency-Key"


OpenDurable = Callable[..., Online]


@pytest.fixture
def open_durable(kafka: KafkaSettings, database_url: str, tmp_path: Path) -> Iterator[OpenDurable]:
    root = tmp_path / uuid.uuid4().hex
    with ExitStack() as stack:
        yield lambda **given: stack.enter_context(opened(kafka, database_url, root, **given))


@pytest.fixture
def durable(open_durable: OpenDurable) -> Online:
    return open_durable(wait_s_max=2.0)


def post(
    client: httpx.Client, body: dict[str, Any] | None = None, **headers: str
) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.post(ENDPOINT, json=body or ASK, headers=named)


def is_replay(answer: httpx.Response) -> bool:
    return bool(answer.headers.get("idempotent-replayed") == "true")


def stored(objects: ObjectStore) -> list[str]:
    return [found.key for found in objects.list("requests/")]


def test_a_call_with_a_key_is_answered_and_replayed(durable: Online) -> None:
    def script(pool: PlayedPool, chunk: Chunk) -> None:
        durable.record(chunk)
        answer_at_once(pool, chunk)

    durable.pool.script = script
    with durable.site.client() as client:
        first = post(client, Idempotency_Key="k")
        second = post(client, Idempotency_Key="k")
        changed = post(client, ASK | {"n": 1}, Idempotency_Key="k")
    assert (ok(first), first.headers["x-millrace-durable"]) == ({"asked": ASK}, "true")
    assert (second.status_code, second.content) == (200, first.content)
    assert [is_replay(first), is_replay(second)] == [False, True]
    assert refused(changed, 422)["code"] == "idempotency_key_reused"
    chunk = durable.pool.only_chunk()
    assert chunk.job.call is not None
    assert chunk.job.call.durable
    assert durable.job_count() == 1
    assert len(stored(durable.site.objects)) == 1
    durable.end()
    assert stored(durable.site.objects) == []


def test_a_concurrent_duplicate_is_refused_until_the_answer_exists(durable: Online) -> None:
    durable.pool.script = say_nothing
    with durable.site.client() as client, durable.site.client(timeout_s=0.5) as hasty:
        with pytest.raises(httpx.ReadTimeout):
            post(hasty, Idempotency_Key="k")
        twin = post(client, Idempotency_Key="k")
        assert refused(twin, 409)["code"] == "idempotency_key_in_flight"
        assert twin.headers["retry-after"] == "1"
        durable.record(durable.pool.only_chunk())
        again = post(client, Idempotency_Key="k")
    assert ok(again) == {"asked": ASK}
    assert is_replay(again)
    assert durable.job_count() == 1


def test_a_retry_waits_for_the_row_of_its_answer(open_durable: OpenDurable) -> None:
    durable = open_durable(replay_wait_s=10.0)
    with durable.site.client() as client:
        first = post(client, Idempotency_Key="k")
        chunk = durable.pool.only_chunk()
        writer = threading.Timer(0.3, durable.record, [chunk])
        writer.start()
        again = post(client, Idempotency_Key="k")
        writer.join()
    assert (again.status_code, again.content) == (200, first.content)
    assert is_replay(again)


def test_a_replay_needs_no_capacity(open_durable: OpenDurable) -> None:
    durable = open_durable(online=OnlineSettings(open_calls_per_tenant_max=1))
    ask = ASK | {"stream": True}
    with durable.site.client() as client:
        first = post(client, Idempotency_Key="k")
        durable.record(durable.pool.only_chunk())
        durable.pool.script = lambda pool, chunk: pool.reply(chunk, pieces=[b"{}"])
        with client.stream("POST", ENDPOINT, json=ask, headers={KEY: "s"}) as answer:
            pieces = answer.iter_raw()
            assert next(pieces) == b"data: {}\n\n"
            assert refused(post(client), 429)["code"] == "queue_full"
            assert refused(post(client, Idempotency_Key="n"), 429)["code"] == "queue_full"
            assert refused(post(client, ask, Idempotency_Key="m"), 429)["code"] == "queue_full"
            again = post(client, Idempotency_Key="k")
            assert (again.status_code, again.content) == (200, first.content)
            refused(post(client, ASK | {"n": 1}, Idempotency_Key="k"), 422)
            refused(post(client, ask, Idempotency_Key="s"), 409)
    assert durable.job_count() == 1
    assert len(stored(durable.site.objects)) == 1


CHANGES: list[dict[str, Any]] = [{}, {"n": 1}, {"n": 1, "stream": True}]
ENVELOPE = b'{"error":{"message":"no","type":"t","param":null,"code":"c"}}'


@pytest.mark.parametrize("change", CHANGES)
def test_a_failure_frees_the_key(durable: Online, change: dict[str, Any]) -> None:
    durable.pool.script = say_nothing
    with durable.site.client() as client, durable.site.client(timeout_s=0.5) as hasty:
        with pytest.raises(httpx.ReadTimeout):
            post(hasty, Idempotency_Key="k")
        chunk = durable.pool.only_chunk()
        durable.record(chunk, outcome=Outcome.FAILED, status_code=400, body=ENVELOPE)
        durable.pool.script = answer_at_once
        again = post(client, ASK | change, Idempotency_Key="k")
        third = post(client, ASK | {"n": 3}, Idempotency_Key="k")
    assert (again.status_code, is_replay(again)) == (200, False)
    assert refused(third, 422)["code"] == "idempotency_key_reused"
    assert len(durable.pool.chunks) == 2


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    ("header", "code"),
    [
        ("X-Request-Timeout-Ms", "deadline_exceeded"),
        ("X-Request-Queue-Timeout-Ms", "queue_timeout"),
    ],
)
def test_a_key_expires_with_the_deadline_of_its_call(
    durable: Online, header: str, code: str, change: dict[str, Any]
) -> None:
    durable.pool.script = say_nothing
    with durable.site.client() as client:
        late = post(client, ASK, Idempotency_Key="k", **{header: "300"})
        assert refused(late, 504)["code"] == code
        durable.pool.script = answer_at_once
        again = post(client, ASK | change, Idempotency_Key="k")
    assert (again.status_code, is_replay(again)) == (200, False)


@pytest.mark.parametrize("change", CHANGES[1:])
def test_a_corrected_call_waits_for_the_row_of_the_failure(
    open_durable: OpenDurable, change: dict[str, Any]
) -> None:
    durable = open_durable(replay_wait_s=10.0)
    durable.pool.script = lambda pool, chunk: pool.reply(
        chunk, end=ReplyEnd(status_code=400, body=ENVELOPE)
    )
    with durable.site.client() as client:
        refused(post(client, Idempotency_Key="k"), 400)
        chunk = durable.pool.only_chunk()
        failed = {"outcome": Outcome.FAILED, "status_code": 400, "body": ENVELOPE}
        writer = threading.Timer(0.3, durable.record, [chunk], failed)
        writer.start()
        durable.pool.script = answer_at_once
        corrected = post(client, ASK | change, Idempotency_Key="k")
        writer.join()
    assert (corrected.status_code, is_replay(corrected)) == (200, False)


def test_one_of_two_corrected_calls_gets_the_key(durable: Online) -> None:
    durable.pool.script = say_nothing
    with durable.site.client() as client:
        refused(post(client, Idempotency_Key="k", X_Request_Timeout_Ms="100"), 504)

        def corrected(number: int) -> httpx.Response:
            return post(client, ASK | {"n": number}, Idempotency_Key="k", Prefer="wait=1")

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(corrected, range(1, 9)))
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses[0] == 202
    assert set(statuses[1:]) <= {409, 422}
    assert durable.job_count() == 2


def test_a_failed_stream_frees_its_key_before_its_end(durable: Online) -> None:
    ask = ASK | {"stream": True}
    with durable.site.client() as client:
        for number in range(10):
            durable.pool.script = lambda pool, chunk: pool.reply(
                chunk, end=ReplyEnd(status_code=400, body=ENVELOPE)
            )
            refused(post(client, ask, Idempotency_Key=f"s{number}"), 400)
            durable.pool.script = answer_at_once
            corrected = post(client, ask | {"n": 1}, Idempotency_Key=f"s{number}")
            assert corrected.status_code == 200, corrected.text


def test_a_call_in_the_background(durable: Online) -> None:
    durable.pool.script = lambda pool, chunk: durable.record(chunk)
    with durable.site.client() as client:
        answer = post(client, ASK | {"background": True}, Idempotency_Key="k")
        accepted = ok(answer, 202)
        assert answer.headers["location"] == f"/v1/jobs/{accepted['id']}"
        assert accepted | {"id": ""} == {"id": "", "object": "job", "status": "in_progress"}
        job = until_found(lambda: answered(client, accepted["id"]))
        assert job["response"]["status_code"] == 200
        assert job["response"]["body"] == {"asked": ASK}
        assert (job["model"], job["model_version"]) == ("org/online", "7")
        assert job["usage"]["total_tokens"] == 5
        durable.end()
        ended = shown(client, accepted["id"])
        assert (ended["status"], ended["error"]) == ("completed", None)
        again = post(client, ASK | {"background": True}, Idempotency_Key="k")
    assert (again.status_code, again.content) == (202, answer.content)
    assert is_replay(again)
    assert durable.pool.only_chunk().items[0].body == b'{"model":"org/online","messages":[]}'
    assert accepted["id"] == f"job_{durable.pool.only_chunk().job.job_id.hex}"


def answered(client: httpx.Client, job: str) -> dict[str, Any] | None:
    found = shown(client, job)
    return found if found["response"] else None


def shown(client: httpx.Client, job: str) -> dict[str, Any]:
    found: dict[str, Any] = ok(client.get(f"/v1/jobs/{job}"))
    return found


def test_an_sdk_retry_in_the_background_is_one_job(durable: Online) -> None:
    durable.pool.script = say_nothing
    ask = ASK | {"background": True}
    with durable.site.client() as client:
        ids = [
            ok(post(client, ask, x_stainless_retry_count=tries), 202)["id"]
            for tries in ("0", "1", "2", "0")
        ]
    assert len(set(ids[:3])) == 1
    assert ids[3] != ids[0]


def test_a_preferred_wait_ends_with_a_202_that_is_replayed(durable: Online) -> None:
    durable.pool.script = say_nothing
    with durable.site.client() as client:
        began_s = time.monotonic()
        answer = post(client, Prefer="wait=1", Idempotency_Key="k")
        assert 0.9 < time.monotonic() - began_s < 5.0
        accepted = ok(answer, 202)
        chunk = durable.pool.only_chunk()
        durable.record(chunk)
        until(lambda: key_state(durable) == "saved")
        again = post(client, Prefer="wait=1", Idempotency_Key="k")
        assert (again.status_code, again.content) == (202, answer.content)
        assert shown(client, accepted["id"])["response"]["body"] == {"asked": ASK}


def key_state(durable: Online) -> str | None:
    with durable.site.engine.connect() as connection:
        return connection.scalar(sa.select(idempotency_keys.c.state))


def test_a_reply_within_the_preferred_wait_is_sent(durable: Online) -> None:
    with durable.site.client() as client:
        answer = post(client, Prefer="respond-async, wait=2")
    assert ok(answer) == {"asked": ASK}
    assert answer.headers["preference-applied"] == "wait=2"
    assert durable.job_count() == 1


def test_preferences_on_several_lines_are_one_list(durable: Online) -> None:
    lines = [("prefer", "wait=2"), ("prefer", "respond-async")]
    with durable.site.client() as client:
        answer = client.post(ENDPOINT, json=ASK, headers=lines)
    assert ok(answer) == {"asked": ASK}
    assert answer.headers["preference-applied"] == "wait=2"


@pytest.mark.parametrize("wait", ["wait=600", "wait=1000000", "wait=" + "9" * 1000])
def test_a_wait_longer_than_allowed_is_capped(durable: Online, wait: str) -> None:
    durable.pool.script = say_nothing
    with durable.site.client() as client:
        answer = post(client, Prefer=wait)
    ok(answer, 202)
    assert answer.headers["preference-applied"] == "wait=2"


def test_a_cancelled_job(durable: Online) -> None:
    durable.pool.script = say_nothing
    with durable.site.client() as client, durable.site.client(durable.site.other_key) as other:
        job = ok(post(client, ASK | {"background": True}), 202)["id"]
        refused(other.delete(f"/v1/jobs/{job}"), 404)
        assert ok(client.delete(f"/v1/jobs/{job}"))["status"] == "cancelling"
        request_id = parse_public_id(SINGLE, job)
        assert request_id is not None
        durable.pool.wait_for(lambda: durable.pool.aborted(request_id))
        assert ok(client.delete(f"/v1/jobs/{job}"))["status"] == "cancelling"


def test_batches_and_single_requests_are_separate(durable: Online) -> None:
    with durable.site.client() as client:
        job = ok(post(client, ASK | {"background": True}), 202)["id"]
        refused(client.get(f"/v1/batches/{job}"), 404)
        refused(client.get(f"/v1/batches/batch_{job.removeprefix('job_')}"), 404)
        assert ok(client.get("/v1/batches"))["data"] == []
        for wrong in ("job_" + "0" * 32, "nonsense"):
            assert refused(client.get(f"/v1/jobs/{wrong}"), 404)["code"] == "job_not_found"


def test_a_stream_with_a_key_is_replayed(durable: Online) -> None:
    ask = ASK | {"stream": True}
    with durable.site.client() as client:
        first = post(client, ask, Idempotency_Key="s")
        second = post(client, ask, Idempotency_Key="s")
        changed = post(client, ASK, Idempotency_Key="s")
    assert first.status_code == 200
    assert first.headers["x-millrace-durable"] == "false"
    assert first.text.endswith("data: [DONE]\n\n")
    assert (second.status_code, second.content) == (200, first.content)
    for name in ("content-type", "cache-control", "x-accel-buffering"):
        assert second.headers[name] == first.headers[name]
    assert is_replay(second)
    refused(changed, 422)
    assert len(durable.pool.chunks) == 1


def test_a_stream_holds_its_key_until_its_client_disconnects(
    durable: Online,
) -> None:
    durable.pool.script = lambda pool, chunk: pool.reply(chunk, pieces=[b"{}"])
    ask = ASK | {"stream": True}
    with durable.site.client() as client:
        with client.stream("POST", ENDPOINT, json=ask, headers={KEY: "s"}) as answer:
            pieces = answer.iter_raw()  # held: one that is dropped closes the connection
            assert next(pieces) == b"data: {}\n\n"
            refused(post(client, ask, Idempotency_Key="s"), 409)
        durable.pool.script = answer_at_once
        until(lambda: post(client, ask, Idempotency_Key="s").status_code == 200)


def test_a_stream_in_the_background_is_refused(durable: Online) -> None:
    with durable.site.client() as client:
        answer = post(client, ASK | {"stream": True, "background": True})
    assert refused(answer, 400)["code"] == "stream_not_supported"
