"""Goal: a durable call that is late, closed or cannot be sent is answered and never duplicated."""

import threading
from typing import Any

import pytest

import api.online.durable.durable_calls
import api.online.send.call_sender
from core.states import CloseReason
from gpu_consumers.payloads.bodies import store_body
from storage.objects.errors import ObjectStoreUnavailableError
from tests.integration.api.answers import ok, refused
from tests.integration.api.online_site import Online
from tests.integration.api.pool import PlayedPool, Script
from tests.support.until import until
from topics.errors import DeliveryError
from topics.records.records import Chunk, ReplyEnd

KEY = {"Idempotency_Key": "k"}
STREAM = {"stream": True}
TIMEOUT_S = 1.0


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("late", "asked"), [("write_object", {}), ("commit_request", {}), ("hold_stream_key", STREAM)]
)
def test_time_before_the_record_counts(
    online: Online, monkeypatch: pytest.MonkeyPatch, late: str, asked: dict[str, Any]
) -> None:
    """A store and a database that take their time are cut at the deadline of a call, which is not
    run: what they do all the same holds its key for no longer.
    """
    own = getattr(api.online.durable.durable_calls, late)
    is_answered, is_done = threading.Event(), threading.Event()

    def delayed(*args: object) -> object:
        assert is_answered.wait(40)
        try:
            return own(*args)
        finally:
            is_done.set()

    headers = KEY | {"X_Request_Timeout_Ms": str(round(TIMEOUT_S * 1000))}
    ok(online.call())  # its model is known from now on
    with monkeypatch.context() as slow:
        slow.setattr(api.online.durable.durable_calls, late, delayed)
        answer = online.call(asked, **headers)
    is_answered.set()
    assert refused(answer, 504)["code"] == "deadline_exceeded"
    assert is_done.wait(40)
    assert len(online.pool.chunks) == 1
    until(lambda: online.call(asked, **KEY).status_code == 200)
    assert len(online.pool.chunks) == 2


@pytest.mark.timeout(120)
def test_a_reply_that_cannot_be_fetched_is_available_later(
    online: Online, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(pool: PlayedPool, chunk: Chunk) -> None:
        key = store_body(online.site.objects, chunk.job.job_id, b'{"large":1}')
        pool.reply(chunk, end=ReplyEnd(200, b"", body_key=key))

    def refuse(*_: object) -> None:
        raise ObjectStoreUnavailableError

    online.pool.script = script
    with monkeypatch.context() as unavailable:
        unavailable.setattr(api.online.send.call_sender, "read_object", refuse)
        bound = online.call()
        patient = online.call(Prefer="wait=20")
        keyed = online.call(**KEY)
    for chunk in online.pool.chunks[1:]:
        online.record(chunk)
    again = online.call(**KEY)
    assert refused(bound, 503)["code"] == "service_unavailable"
    assert bound.headers["x-should-retry"] == "false"
    accepted = ok(patient, 202)
    job = ok(online.client.get(f"/v1/jobs/{accepted['id']}"))
    assert job["response"]["status_code"] == 200
    assert refused(keyed, 503)["code"] == "service_unavailable"
    assert "x-should-retry" not in keyed.headers
    assert again.headers["idempotent-replayed"] == "true"
    ok(again)
    assert len(online.pool.chunks) == 3


def test_a_replay_needs_no_object_store(online: Online, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"background": True}
    first = online.call(asked, **KEY)

    def refuse(*_: object) -> None:
        raise ObjectStoreUnavailableError

    monkeypatch.setattr(api.online.durable.durable_calls, "write_object", refuse)
    again = online.call(asked, **KEY)
    assert (again.status_code, again.content) == (202, first.content)
    other = online.call(asked | {"seed": 1}, **KEY)
    assert refused(other, 422)["code"] == "idempotency_key_reused"
    refused(online.call(asked, Idempotency_Key="new"), 503)


def test_a_committed_call_that_cannot_be_sent_is_accepted(
    online: Online, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repair sends it. Another try would be another call, unless it has a key."""

    def refuse(*_: object, partition: int) -> None:
        raise DeliveryError("the local queue stayed full")

    monkeypatch.setattr(api.online.send.call_sender, "send_chunk", refuse)
    patient = online.call(Prefer="wait=60")
    assert patient.status_code == 202
    keyed = online.call(**KEY)
    assert refused(keyed, 503)["code"] == "log_unavailable"
    assert online.job_count() == 2


CONFLICT = b'{"error":{"message":"no","type":"t","param":null,"code":"c"}}'


REPLICAS_WORD = ReplyEnd(
    409, b'{"error":{"message":"m","type":"t","param":null,"code":"cancelled"}}'
)


def say_cancelled(pool: PlayedPool, chunk: Chunk) -> None:
    """Cut a call short, as a replica does that hears of it first."""
    pool.reply(chunk, end=REPLICAS_WORD)


def tell_of_close(pool: PlayedPool, chunk: Chunk) -> None:
    """Drop a call unsent, as a batcher does: only `control` tells of it."""
    pool.close_job(chunk.job.job_id, CloseReason.CANCELLED)


@pytest.mark.parametrize("script", [say_cancelled, tell_of_close])
@pytest.mark.parametrize("headers", [KEY, {"Prefer": "wait=5"}])
def test_a_job_cancelled_by_another_process_ends_its_call(
    online: Online, script: Script, headers: dict[str, str]
) -> None:
    online.pool.script = script
    answer = online.call(**headers)
    assert refused(answer, 409)["code"] == "job_cancelled"
    assert answer.headers["x-should-retry"] == "false"


def test_an_expired_job_ends_its_call(online: Online) -> None:
    online.pool.script = lambda pool, chunk: pool.close_job(chunk.job.job_id, CloseReason.EXPIRED)
    answer = online.call(**KEY)
    assert refused(answer, 504)["code"] == "deadline_exceeded"


def test_a_409_of_the_engine_is_passed_on(online: Online) -> None:
    conflict = ReplyEnd(409, CONFLICT)
    online.pool.script = lambda pool, chunk: pool.reply(chunk, end=conflict)
    answer = online.call(**KEY)
    assert (answer.status_code, answer.content) == (409, CONFLICT)
