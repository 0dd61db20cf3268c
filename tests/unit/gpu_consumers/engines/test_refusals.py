"""Goal: what vLLM refuses has the code that clients of OpenAI look for."""

import pytest

from gpu_consumers.engines.error_answers import answer_code, may_pass
from gpu_consumers.engines.refusals import refusal_answer


@pytest.mark.parametrize(
    ("status", "param", "code"),
    [
        (400, "input_tokens", "context_length_exceeded"),
        (400, "input_text", "context_length_exceeded"),
        (400, "max_tokens", None),
        (400, None, None),
        (404, None, "model_not_found"),
        (500, "input_tokens", None),
    ],
)
def test_codes(status: int, param: str | None, code: str | None) -> None:
    answer = refusal_answer(status, "No.", param)
    assert (answer.status_code, answer_code(answer.body)) == (status, code)
    assert may_pass(answer) is (status == 500)
