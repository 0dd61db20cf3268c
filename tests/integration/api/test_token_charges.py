"""Goal: a call is charged what it used, and what it did not use is refunded."""

from collections.abc import Callable

import httpx
import pytest

from tests.integration.api.online_site import ASK, ENDPOINT, Online
from tests.integration.api.pool import answer_at_once, say_nothing
from topics.records.records import ReplyEnd

LARGE = {"max_tokens": 8, "user": "x" * 3_500}
ONLINE = {"tokens_per_minute": 1000}
"""Room for one call with a large prompt: what is kept of it would refuse the next one."""


def unknown_model(online: Online) -> httpx.Response:
    return online.call(LARGE | {"model": "nobody"})


def key_of_another_call(online: Online) -> httpx.Response:
    assert online.call({"max_tokens": 1}, Idempotency_Key="k").status_code == 200
    return online.call(LARGE, Idempotency_Key="k")


def stream_in_the_background(online: Online) -> httpx.Response:
    return online.call(LARGE | {"stream": True, "background": True})


@pytest.mark.parametrize(
    ("refused", "code"),
    [
        (unknown_model, "model_not_found"),
        (key_of_another_call, "idempotency_key_reused"),
        (stream_in_the_background, "stream_not_supported"),
    ],
)
def test_a_refused_call_is_not_charged(
    online: Online, refused: Callable[[Online], httpx.Response], code: str
) -> None:
    assert refused(online).json()["error"]["code"] == code
    assert online.call(LARGE).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_without_a_reply_by_its_deadline_is_not_charged(
    online: Online, stream: bool
) -> None:
    online.pool.script = say_nothing
    late = online.call(LARGE | {"stream": stream}, X_Request_Timeout_Ms="200")
    assert late.status_code == 504
    online.pool.script = answer_at_once
    assert online.call(LARGE).status_code == 200


def test_an_abandoned_stream_is_charged_what_its_replica_reports(online: Online) -> None:
    online.pool.script = lambda pool, chunk: pool.reply(chunk, pieces=[b'{"n":0}'])
    with online.client.stream("POST", ENDPOINT, json=ASK | LARGE | {"stream": True}) as answer:
        pieces = answer.iter_raw()  # held: one that is dropped closes the connection
        assert next(pieces) == b'data: {"n":0}\n\n'
    chunk = online.pool.only_chunk()
    online.pool.wait_for(lambda: online.pool.aborted(chunk.job.job_id))
    online.pool.script = answer_at_once
    assert online.call(LARGE).status_code == 429  # until the report
    online.pool.reply(chunk, end=ReplyEnd(499, b"", input_tokens=20, output_tokens=5))
    online.pool.wait_for(lambda: online.call(LARGE).status_code == 200)


def test_a_whole_answer_shows_what_is_left_after_its_usage(online: Online) -> None:
    answer = online.call(LARGE)
    assert answer.status_code == 200
    assert int(answer.headers["x-ratelimit-remaining-tokens"]) >= 1000 - 5
