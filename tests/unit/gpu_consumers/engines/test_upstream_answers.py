"""Goal: every upstream answer is one line of JSON or an envelope; one table decides on retries."""

import msgspec
import pytest

from core.outcomes import Outcome
from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.error_answers import (
    error_answer,
    error_code_of,
    is_transient,
    item_timeout_answer,
)
from gpu_consumers.engines.openai_http.upstream_answers import upstream_answer
from gpu_consumers.inflight.item_outcomes import ANSWER_MISSING, INPUT_MISSING, outcome_of
from topics.records.records import Item

NO_OBJECT = "The upstream answered 400 without a JSON object."


@pytest.mark.parametrize(
    ("status", "body", "type_", "message"),
    [
        (404, b'{"detail":"Not Found"}', "invalid_request_error", "Not Found"),
        (400, b'{"error":"no \\u00e9"}', "invalid_request_error", "no é"),
        (500, b'{"error":null,"message":"broken"}', "server_error", "broken"),
        (404, b'{"object":"error","message":"no model"}', "invalid_request_error", "no model"),
        (400, b'{"error":"Bad Request","message":"too long"}', "invalid_request_error", "too long"),
        (400, b'[{"error":{}}]', "invalid_request_error", NO_OBJECT),
        (400, b'{"error":"","title":"Bad"}', "invalid_request_error", "Bad"),
        (
            422,
            b'{"detail":[{"loc":["n"]}]}',
            "invalid_request_error",
            'The upstream answered 422: {"detail":[{"loc":["n"]}]}',
        ),
        (500, b"{}", "server_error", "The upstream answered 500: {}"),
        (200, b'{"error":"odd"}', "server_error", "odd"),
    ],
)
def test_refusal_without_envelope_gets_one(
    status: int, body: bytes, type_: str, message: str
) -> None:
    answer = upstream_answer(status, body)
    assert answer.status_code == (502 if status == 200 else status)
    error = {"message": message, "type": type_, "param": None, "code": None}
    assert msgspec.json.decode(answer.body) == {"error": error}


@pytest.mark.parametrize(
    "body", [b'{"error": {"message":"no"}}', b'{"error":{}}', b'{"detail":"x","error":{"code":7}}']
)
def test_envelope_is_unchanged(body: bytes) -> None:
    assert upstream_answer(400, body) == EngineAnswer(400, body)


def test_refusal_message_is_limited() -> None:
    for body in (b'{"detail":"%b"}', b'{"detail":["%b"]}'):
        answer = upstream_answer(400, body % (b"x" * 100_000))
        assert len(answer.body) < 5000


def test_usage_with_an_error_is_kept() -> None:
    answer = upstream_answer(200, b'{"error":"odd","usage":{"prompt_tokens":3}}')
    assert (answer.status_code, answer.input_tokens) == (502, 3)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"error":{"code":502,"message":"Provider returned error"}}', 502),
        (b'{"error":{"code":404,"message":"gone"},"user_id":"u"}', 404),
        (b'{"error":{"code":"overloaded","message":"later"}}', 502),
        (b'{"error":{"code":7}}', 502),
        (b'{"error":{"code":true}}', 502),
        (b'{"error":{},"choices":[],"data":null}', 502),
        (b'{"error":{},"usage":{"prompt_tokens":3}}', 502),
        (b'{"error":null}', 200),
        (b'{"error":{"code":400},"choices":[{"index":0}]}', 200),
        (b'{"error":{"code":400},"data":[1]}', 200),
        (b'{"error":{"code":400},"results":[1]}', 200),
        (b'{"error":{"code":400},"object":"response"}', 200),
        (b'{"choices":[]}', 200),
    ],
)
def test_error_without_results_is_a_failure(body: bytes, status: int) -> None:
    answer = upstream_answer(200, body)
    assert (answer.status_code, answer.body) == (status, body)


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (200, b"data: x\n\ndata: [DONE]\n\n", "answer_not_json"),
        (200, b'{"a":"\xff"}', "answer_not_json"),
        (200, b"[1]", "answer_not_json"),
        (200, b"", "answer_not_json"),
        (307, b"", "upstream_redirect"),
    ],
)
def test_unusable_answer_fails_the_item(status: int, body: bytes, code: str) -> None:
    answer = upstream_answer(status, body)
    assert (answer.status_code, error_code_of(answer.body)) == (502, code)


@pytest.mark.parametrize("status", [400, 404, 413, 500, 507])
def test_refusal_without_json_gets_an_envelope(status: int) -> None:
    answer = upstream_answer(status, b"<html>")
    assert answer.status_code == status
    assert b"html" not in answer.body


def test_pretty_printed_answer_becomes_one_line() -> None:
    pretty = b'{\r\n "usage": {\n  "prompt_tokens": 3, "completion_tokens": -4},\n "a": "\\n"\n}\n'
    answer = upstream_answer(200, pretty)
    assert b"\n" not in answer.body
    assert msgspec.json.decode(answer.body)["a"] == "\n"
    assert (answer.input_tokens, answer.output_tokens) == (3, 0)


ITEM = Item(7, "id-7", b"{}", 1, 2, 700)


@pytest.mark.parametrize(
    ("answer", "may"),
    [
        (error_answer(400, "wrong"), False),
        (error_answer(404, "unknown"), False),
        (error_answer(408, "too slow"), True),
        (error_answer(409, "in conflict"), True),
        (error_answer(413, "too large"), False),
        (error_answer(422, "wrong"), False),
        (error_answer(425, "too early"), True),
        (error_answer(500, "broken"), True),
        (error_answer(501, "unknown"), False),
        (error_answer(502, "away", code="upstream_disconnected"), True),
        (error_answer(502, "odd", code="answer_not_http"), True),
        (error_answer(502, "odd", code="answer_not_json"), True),
        (error_answer(502, "large", code="answer_too_large"), False),
        (error_answer(502, "elsewhere", code="upstream_redirect"), False),
        (error_answer(520, "odd"), True),
        (EngineAnswer(500, b"<html>"), True),
        (EngineAnswer(500, b'{"error":"a string"}'), True),
        (EngineAnswer(500, b'{"error":{"code":500}}'), True),
        (EngineAnswer(500, b"\xff" * 9), True),
        (EngineAnswer(500, b"[" * 100_000), True),
        (ANSWER_MISSING, True),
        (INPUT_MISSING, False),
        (item_timeout_answer(600.0), True),
    ],
)
def test_transient_failures(answer: EngineAnswer, may: bool) -> None:
    assert is_transient(answer) is may
    outcome = outcome_of(ITEM, answer)
    assert (outcome.outcome, outcome.retryable) == (Outcome.FAILED, may)
    assert (outcome.index, outcome.attempt, outcome.offset) == (7, 2, 700)
    assert not outcome_of(ITEM, answer, is_final=True).retryable


def test_success_is_not_transient() -> None:
    outcome = outcome_of(ITEM, EngineAnswer(200, b"{}", 1, 2, 3, 4))
    assert (outcome.outcome, outcome.retryable, outcome.offset) == (Outcome.SUCCEEDED, False, 0)
    assert outcome == outcome_of(ITEM, EngineAnswer(200, b"{}", 1, 2, 3, 4), is_final=True)
