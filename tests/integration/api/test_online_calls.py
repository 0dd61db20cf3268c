"""Goal: an online call is one record, and its client gets its replies in order."""

import json
import re
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client import REGISTRY

from gpu_consumers.payloads.bodies import load_body, store_body
from tests.integration.api.answers import interrupted_after, refused
from tests.integration.api.online_site import ASK, ENDPOINT, Online, OpenOnline
from tests.integration.api.pool import PlayedPool, good_end, say_nothing
from topics.records.records import Chunk, ReplyEnd


def first_pieces() -> float:
    return REGISTRY.get_sample_value("millrace_online_first_piece_seconds_count") or 0.0


def test_a_unary_call(online: Online) -> None:
    answer = online.call()

    assert answer.status_code == 200
    assert answer.json() == {"asked": ASK}
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-millrace-model-version"] == "org/online@7"
    assert answer.headers["x-millrace-durable"] == "false"
    for part in ("gateway", "queue", "batch", "execution", "postprocess"):
        assert f"{part};dur=" in answer.headers["server-timing"]
    assert int(answer.headers["x-ratelimit-remaining-requests"]) > 0
    chunk = online.pool.only_chunk()
    assert answer.headers["x-request-id"] == f"req_{chunk.job.job_id.hex}"
    assert (chunk.job.pool, chunk.job.model_version) == ("small", "7")


def test_a_stream(online: Online) -> None:
    with online.client.stream("POST", ENDPOINT, json=ASK | {"stream": True}) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-accel-buffering"] == "no"
        text = answer.read().decode()

    assert text == 'data: {"n":0}\n\ndata: {"n":1}\n\ndata: {"n":2}\n\ndata: [DONE]\n\n'


def test_an_engine_error_keeps_its_status_in_a_stream(online: Online) -> None:
    envelope = b'{"error":{"message":"no","type":"t","param":null,"code":"c"}}'
    online.pool.script = lambda pool, chunk: pool.reply(chunk, end=ReplyEnd(422, envelope))
    for stream in (False, True):
        answer = online.call({"stream": stream})
        assert (answer.status_code, answer.content) == (422, envelope)


def test_an_interrupted_stream_ends_with_an_error_event(online: Online) -> None:
    envelope = b'{"error":{"message":"gone","type":"t","param":null,"code":"stream_interrupted"}}'

    def script(pool: PlayedPool, chunk: Chunk) -> None:
        pool.reply(chunk, pieces=[b'{"n":0}'])
        pool.reply(chunk, pieces=[b'{"n":1}'], end=ReplyEnd(502, envelope))

    online.pool.script = script
    text = online.call({"stream": True}).text

    assert interrupted_after(text) == ['data: {"n":0}', 'data: {"n":1}']
    assert text.endswith("\n\n")


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_is_aborted_at_its_deadline_or_without_a_start_in_time(
    online: Online, stream: bool
) -> None:
    online.pool.script = say_nothing
    late = online.call({"stream": stream}, X_Request_Timeout_Ms="300")
    assert refused(late, 504)["code"] == "deadline_exceeded"
    first = online.pool.only_chunk()
    online.pool.wait_for(lambda: online.pool.aborted(first.job.job_id))

    waiting = online.call({"stream": stream}, X_Request_Queue_Timeout_Ms="300")
    assert refused(waiting, 504)["code"] == "queue_timeout"
    online.pool.wait_for(lambda: len(online.pool.chunks) == 2)
    chunk = online.pool.chunks[1]
    online.pool.wait_for(lambda: online.pool.aborted(chunk.job.job_id))
    assert chunk.job.call is not None
    assert chunk.job.call.begin_by_s - (chunk.job.deadline_s - 600) == pytest.approx(0.3)
    assert json.loads(chunk.items[0].body) == ASK | {"stream": stream}


def test_a_started_call_may_exceed_its_queue_timeout(open_online: OpenOnline) -> None:
    online = open_online(queue_timeout_s=1)

    def script(pool: PlayedPool, chunk: Chunk) -> None:
        pool.reply(chunk)
        time.sleep(1.5)
        pool.reply(chunk, end=good_end(b"{}"))

    online.pool.script = script
    assert online.call().status_code == 200


def test_a_call_in_the_background_has_no_queue_timeout(online: Online) -> None:
    for fields, headers in (
        ({"background": True, "queue_timeout_ms": 50}, {}),
        ({}, {"prefer": "wait=5", "x-request-queue-timeout-ms": "50"}),
    ):
        answer = online.call(fields, **headers)
        assert answer.status_code == 400
        asked = {"queue_timeout_ms", "x-request-queue-timeout-ms"} & {*fields, *headers}
        assert {answer.json()["error"]["param"]} == asked


@pytest.mark.parametrize("stream", [False, True])
def test_a_disconnect_aborts_the_call(online: Online, stream: bool) -> None:
    online.pool.script = say_nothing
    with online.send({"stream": stream}):
        chunk = online.pool.only_chunk()
    online.pool.wait_for(lambda: online.pool.aborted(chunk.job.job_id))


def test_a_silent_stream_sends_keep_alives(open_online: OpenOnline) -> None:
    online = open_online(keep_alive_s=0.2)
    online.pool.script = say_nothing
    with online.client.stream("POST", ENDPOINT, json=ASK | {"stream": True}) as answer:
        lines = answer.iter_lines()
        assert next(lines) == ": keep-alive"
        told = first_pieces()
        assert re.fullmatch(r"gateway;dur=\d+\.\d\d", answer.headers["server-timing"])
        chunk = online.pool.only_chunk()
        refusal = b'{"error":{"message":"no","type":"t","param":null,"code":"c"}}'
        online.pool.reply(chunk, pieces=[b'{"n":0}'])
        online.pool.reply(chunk, end=ReplyEnd(400, refusal))
        rest = [line for line in lines if line and not line.startswith(":")]

    assert answer.status_code == 200
    assert rest == ['data: {"n":0}', f"data: {refusal.decode()}"]
    assert first_pieces() == told + 1  # the slow ones, too


def test_a_second_delivery_runs_only_before_any_reply(online: Online) -> None:
    online.pool.script = say_nothing
    with ThreadPoolExecutor(1) as thread:
        asking = thread.submit(online.call, {"stream": True})
        chunk = online.pool.only_chunk()
        online.pool.ask(chunk)
        online.pool.wait_for(lambda: online.pool.permitted(chunk.job.job_id))
        online.pool.reply(chunk, pieces=[b'{"n":0}'])
        online.pool.reply(chunk, pieces=[b'{"x":0}'], execution_id=uuid.uuid4())
        online.pool.ask(chunk)
        text = asking.result().text

    assert interrupted_after(text) == ['data: {"n":0}']


def test_a_second_delivery_of_an_ended_call_is_aborted(online: Online) -> None:
    assert online.call().status_code == 200
    chunk = online.pool.only_chunk()
    online.pool.ask(chunk)
    online.pool.wait_for(lambda: online.pool.aborted(chunk.job.job_id))
    assert not online.pool.permitted(chunk.job.job_id)


def test_a_started_stream_ends_when_its_pool_has_no_replica(
    online: Online, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.online.online_runtime._POOL_DEAD_S", 2.0)
    online.pool.script = say_nothing
    with ThreadPoolExecutor(1) as thread:
        asking = thread.submit(online.call, {"stream": True})
        chunk = online.pool.only_chunk()
        online.pool.reply(chunk, pieces=[b'{"n":0}'])
        online.pool.is_away = True
        text = asking.result().text

    assert interrupted_after(text) == ['data: {"n":0}']


def test_large_bodies_and_replies_are_sent_by_reference(online: Online) -> None:
    text = "x" * 600_000
    large = json.dumps({"text": text}).encode()

    def script(pool: PlayedPool, chunk: Chunk) -> None:
        sent = load_body(online.site.objects, chunk.job, chunk.items[0])
        assert json.loads(sent) == {**ASK, "text": text}
        key = store_body(online.site.objects, chunk.job.job_id, large)
        pool.reply(chunk, end=ReplyEnd(200, b"", body_key=key))

    online.pool.script = script
    answer = online.call({"text": text})

    assert answer.content == large
    online.pool.wait_for(lambda: online.site.stored() == [])


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b'{"model":"nobody"}', 404, "model_not_found"),
        (b'{"model":"\\u0000"}', 404, "model_not_found"),
        (b'{"model":"org/small"}', 400, "endpoint_not_supported"),
        (b'{"a":' * 100_000, 400, "invalid_json"),
        (b" " * (4 * 1024 * 1024 + 1), 413, "body_too_large"),
    ],
)
def test_invalid_calls_are_refused_before_they_are_sent(
    online: Online, body: bytes, status: int, code: str
) -> None:
    answer = online.client.post(ENDPOINT, content=body)

    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code
    assert answer.headers["x-request-id"].startswith("req_")
    assert online.pool.chunks == []
