"""Goal: an error with status 200 is a failure unless the body has results."""

import pytest

from gpu_consumers.engines.openai_http.upstream_answers import upstream_answer


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
