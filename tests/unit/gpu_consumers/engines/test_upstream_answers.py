"""Goal: every upstream refusal reaches the client in one envelope."""

import msgspec
import pytest

from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.openai_http.upstream_answers import upstream_answer

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
