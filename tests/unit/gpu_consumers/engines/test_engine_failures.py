"""Goal: vLLM's refusals have the codes of OpenAI's API."""

import json
import math
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
    NOT_FINITE,
    NotFiniteError,
    check_vectors,
    failure_answer,
    invalid_body_answer,
    is_out_of_memory,
    refusal_answer,
    sequence_limit_answer,
)
from gpu_consumers.engines.error_answers import error_code_of, is_transient
from gpu_consumers.engines.openai_http.upstream_answers import upstream_answer


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


class OutOfMemoryError(RuntimeError):
    """As a device's framework names its own."""


def caused(cause: Exception) -> Exception:
    try:
        raise RuntimeError from cause
    except RuntimeError as failure:
        return failure


@pytest.mark.parametrize(
    ("failure", "is_it"),
    [
        (MemoryError(), True),
        (OutOfMemoryError(), True),
        (caused(OutOfMemoryError()), True),
        (ValueError("out of memory"), False),
        (caused(ValueError()), False),
    ],
)
def test_out_of_memory_exceptions_are_recognised(failure: Exception, is_it: bool) -> None:
    assert is_out_of_memory(failure) is is_it


def test_cyclic_causes_terminate() -> None:
    first, second = ValueError(), ValueError()
    first.__cause__, second.__cause__ = second, first
    assert not is_out_of_memory(first)


NAN, INFINITY = math.nan, math.inf


@pytest.mark.parametrize(
    "wrong",
    [*([0.5, number, -0.5] for number in (NAN, INFINITY, -INFINITY)), [INFINITY, -INFINITY]],
)
def test_vectors_with_non_finite_numbers_are_rejected(wrong: list[float]) -> None:
    good = {"embedding": [1e38] * 4096}
    check_vectors([good, {"embedding": "AACAfw=="}, {"embedding": []}])
    with pytest.raises(NotFiniteError):
        check_vectors([good, {"embedding": wrong}])


def test_standard_library_error_is_recognised() -> None:
    with pytest.raises(ValueError, match="not JSON") as refused:
        json.dumps({"score": NAN}, allow_nan=False)  # as vLLM's own responses are rendered
    assert failure_answer(refused.value) is NOT_FINITE
    assert failure_answer(NotFiniteError()) is NOT_FINITE
    assert failure_answer(ValueError("a wrong parameter")) is None
    assert failure_answer(RuntimeError("not JSON compliant")) is None


def test_non_finite_answer_is_transient() -> None:
    assert error_code_of(NOT_FINITE.body) == "answer_not_finite"
    assert is_transient(NOT_FINITE)


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"nan", b"-inf"])
@pytest.mark.parametrize("status", [200, 400, 500])
def test_non_finite_number_in_an_upstream_answer_is_invalid_json(
    number: bytes, status: int
) -> None:
    content = b'{"choices":[{"logprobs":{"content":[{"logprob":%b}]}}]}' % number
    answer = upstream_answer(status, content)
    assert number not in answer.body
    assert msgspec.json.decode(answer.body)["error"]
    if status == 200:
        assert error_code_of(answer.body) == "answer_not_json"


def test_a_message_is_shortened() -> None:
    answer = refusal_answer(400, "token " * 300_000, None)
    assert len(answer.body) < 2_000
    assert json.loads(answer.body)["error"]["message"].startswith("token token")


def test_of_very_many_mistakes_only_the_count_is_told() -> None:
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(list[int]).validate_python(["x"] * 3_000)
    error = json.loads(invalid_body_answer(refused.value).body)["error"]
    assert error["message"] == "The request body has 3000 validation errors."


def test_nesting_beyond_the_stack_is_an_error_of_the_body() -> None:
    deep: list[object] = []
    for _ in range(200_000):
        deep = [deep]
    with pytest.raises(RecursionError) as too_deep:
        json.dumps(deep)
    answer = failure_answer(too_deep.value)
    assert answer is not None
    assert (answer.status_code, error_code_of(answer.body)) == (400, "invalid_value")
    assert not is_transient(answer)
