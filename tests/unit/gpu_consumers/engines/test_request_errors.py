"""Goal: vLLM's refusals have the codes of OpenAI's API."""

from typing import Self

import msgspec
import pytest
from pydantic import (
    BaseModel,
    ModelWrapValidatorHandler,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from gpu_consumers.engines.engine_failures import (
    invalid_body_answer,
    refusal_answer,
    sequence_limit_answer,
)
from gpu_consumers.engines.error_answers import error_code_of, is_transient


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
def test_refusals_have_openai_codes(status: int, param: str | None, code: str | None) -> None:
    answer = refusal_answer(status, "No.", param)
    assert (answer.status_code, error_code_of(answer.body)) == (status, code)
    assert is_transient(answer) is (status == 500)


@pytest.mark.parametrize(
    ("prompt", "n", "param"),
    [
        ("a", None, None),
        ("a", 8, None),
        ("a", 9, "n"),
        (None, 9, "n"),  # of a chat
        (["a"] * 8, 1, None),
        (["a"] * 9, None, "prompt"),
        (["a"] * 3, 3, "prompt"),
        ([[1, 2]] * 9, 1, "prompt"),
        ([1] * 99, 8, None),
        ([], 8, None),
    ],
)
def test_number_of_sequences_is_limited(prompt: object, n: int | None, param: str | None) -> None:
    refusal = sequence_limit_answer(prompt, n, 8)
    assert (None if refusal is None else refusal.status_code) == (param and 400)
    if refusal is not None:
        assert msgspec.json.decode(refusal.body)["error"]["param"] == param


class Texts(BaseModel):
    input: list[str]


class Talk(BaseModel):
    messages: list[str]

    @model_validator(mode="wrap")
    @classmethod
    def _check(cls, given: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        return handler(given)  # as vLLM's models have one


@pytest.mark.parametrize(
    ("body", "param"),
    [("{}", "input"), ('{"messages":7}', "messages"), ('{"input":7}', "input"), ("7", None)],
)
def test_errors_about_present_fields_come_first(body: str, param: str | None) -> None:
    with pytest.raises(ValidationError) as raised:
        TypeAdapter(Texts | Talk).validate_json(body)
    answer = invalid_body_answer(raised.value)
    assert answer.status_code == 400
    assert msgspec.json.decode(answer.body)["error"]["param"] == param
