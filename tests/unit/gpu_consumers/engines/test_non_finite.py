"""Goal: NaN and infinity end as valid JSON or as a failure with its code."""

import json
import math

import msgspec
import pytest
from pydantic import BaseModel

from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.engine_failures import (
    NOT_FINITE,
    NotFiniteError,
    check_vectors,
    is_not_finite,
)
from gpu_consumers.engines.error_answers import error_code_of, is_transient
from gpu_consumers.engines.openai_http.upstream_answers import upstream_answer
from gpu_consumers.engines.response_fields import answer_with_usage

NAN, INFINITY = math.nan, math.inf


@pytest.mark.parametrize("wrong", [NAN, INFINITY, -INFINITY])
def test_vector_with_one_non_finite_number_is_rejected(wrong: float) -> None:
    good = {"embedding": [1e38] * 4096}
    check_vectors([good, {"embedding": "AACAfw=="}, {"embedding": []}])
    with pytest.raises(NotFiniteError):
        check_vectors([good, {"embedding": [0.5, wrong, -0.5]}])


def test_opposite_infinities_are_rejected() -> None:
    with pytest.raises(NotFiniteError):
        check_vectors([{"embedding": [INFINITY, -INFINITY]}])


def test_standard_library_error_is_recognised() -> None:
    with pytest.raises(ValueError, match="not JSON") as refused:
        json.dumps({"score": NAN}, allow_nan=False)  # as vLLM's own responses are rendered
    assert is_not_finite(refused.value)
    assert is_not_finite(NotFiniteError())
    assert not is_not_finite(ValueError("a wrong parameter"))
    assert not is_not_finite(RuntimeError("not JSON compliant"))


def test_non_finite_answer_is_transient() -> None:
    assert error_code_of(NOT_FINITE.body) == "answer_not_finite"
    assert is_transient(NOT_FINITE)


def test_non_finite_log_probabilities_become_null() -> None:
    """As vLLM's answers are rendered: what is below all others is clamped, NaN is not."""

    class Logprob(BaseModel):
        logprob: float
        top: dict[str, float]

    clamped = [max(value, -9999.0) for value in (NAN, -INFINITY)]
    text = Logprob(logprob=clamped[0], top={"a": clamped[1], "b": NAN}).model_dump_json()
    assert msgspec.json.decode(text) == {"logprob": None, "top": {"a": -9999.0, "b": None}}
    assert answer_with_usage(200, text.encode()) == EngineAnswer(200, text.encode())


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
