"""Goal: whatever numbers a body names, validation ends, and so does its item's way to the log.

A line that validation accepts is parsed by each intake that takes its job: an exception there would
end one intake after the other.
"""

import json
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from core.bodies.output_caps import with_output_cap
from core.bodies.token_estimates import CONTEXT_TOKENS_MAX, requested_tokens
from jobs.expansion import emission
from jobs.expansion.emission import ItemParsingError, parse_item
from jobs.input.line_checks import parse_line
from jobs.input.line_reader import InputChangedError, input_lines
from jobs.ordering.prompt_prefixes import predicted_output, prompt_start
from jobs.validation.file_validation import ValidationResult, validate_file
from registry.models import ModelVersion
from topics.records.codec import encode

CHAT, TEXT, EMBED = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
ENDPOINTS = (CHAT, TEXT, EMBED)
NINES = ["9" * count for count in (20, 309, 400, 4_300, 4_301)]
TEXTS = ["inf", "nan", "-0", "1_0", " 1", "\u0661", "0x10", "1e999", "9" * 400]
FLOATS = ["-0.0", "1.0", "1e22", "1e308", "1e999", "-1e999", "1e-999", "NaN", "Infinity"]
OTHERS = ["0", "-0", "true", str(2**63), str(2**64)]
NUMBERS = [*FLOATS, *NINES, *(f"-{nines}" for nines in NINES), *OTHERS, *map(json.dumps, TEXTS)]
FIELDS = ("n", "best_of", "max_tokens", "max_completion_tokens", "min_tokens")

digits = st.builds(
    lambda digit, count: str(digit) * count, st.integers(1, 9), st.integers(1, 5_000)
)
numbers = st.one_of(
    st.sampled_from(NUMBERS),
    digits,
    digits.map(json.dumps),
    st.integers().map(str),
    st.floats().map(json.dumps),
    st.text(max_size=5).map(json.dumps),
)

values = st.one_of(
    *(st.integers(), st.floats(), st.booleans(), st.none(), st.text(max_size=3)),
    st.integers(1, 400).map(lambda count: 10**count),
)


def body_of(fields: dict[str, str], prompt: str, tools: str) -> bytes:
    named = "".join(f',"{name}":{number}' for name, number in fields.items())
    messages = '"messages":[{"role":"user","content":"hi"}]'
    return f'{{"model":"m",{messages},"prompt":{prompt},"tools":[{tools}]{named}}}'.encode(
        errors="replace"
    )


bodies = st.builds(
    body_of,
    st.dictionaries(st.sampled_from(FIELDS), numbers),
    st.one_of(numbers, numbers.map("[{0}]".format), numbers.map("[[{0},{0}],[{0}]]".format)),
    numbers,
)


def line_of(endpoint: str, body: bytes) -> bytes:
    return b'{"custom_id":"1","method":"POST","url":"%b","body":%b}' % (endpoint.encode(), body)


def validated(endpoint: str, line: bytes, orders_items: bool = True) -> ValidationResult:
    model: Any = ModelVersion("m", "1", "p", "vllm", ENDPOINTS, None)  # type: ignore[arg-type]
    return validate_file(
        lambda: input_lines([line], line_bytes_max=10**6),
        endpoint=endpoint,
        items_max=10,
        line_bytes_max=10**6,
        find_model=lambda _: model,
        orders_items=orders_items,
    )


@given(st.sampled_from(ENDPOINTS), bodies, st.sampled_from([0.0, 256.0, 1e9]))
def test_no_number_stops_validation_or_expansion(
    endpoint: str, body: bytes, expected: float
) -> None:
    line = line_of(endpoint, body)
    result = validated(endpoint, line)
    try:
        item = parse_item(0, 0, line, endpoint, expected)
    except ItemParsingError as failure:
        raise AssertionError from failure
    except InputChangedError:
        assert result.error_count
    else:
        encode(item)
        assert 0 <= item.output_token_count <= item.token_count <= CONTEXT_TOKENS_MAX
    requested = requested_tokens(endpoint, body)
    estimate = requested.estimate(expected)
    assert 0 <= requested.sequences <= CONTEXT_TOKENS_MAX
    assert estimate.output_expected <= estimate.output_bound <= CONTEXT_TOKENS_MAX
    assert requested.reservation(estimate) <= CONTEXT_TOKENS_MAX
    with_output_cap(endpoint, body, 5)


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_each_hostile_number_in_each_field(endpoint: str, name: str) -> None:
    for number in NUMBERS:
        body = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"prompt":"a","%b":%b}'
        line = line_of(endpoint, body % (name.encode(), number.encode()))
        if not validated(endpoint, line).error_count:
            parse_item(0, 0, line, endpoint)


@given(st.dictionaries(st.sampled_from(FIELDS), values))
@example({"max_tokens": 10**400, "n": 10**400})
@example({"max_completion_tokens": True, "n": float("nan")})
def test_the_predicted_output_is_bounded(body: dict[str, Any]) -> None:
    assert 0 <= predicted_output(body) <= CONTEXT_TOKENS_MAX
    assert prompt_start(body) == ""


def test_a_defect_in_parsing_is_a_failure_of_the_item_alone() -> None:
    line = line_of(CHAT, b'{"model":"m"}')
    assert isinstance(parse_line(line), dict)
    broken = patch.object(emission, "requested_tokens", side_effect=OverflowError)
    with broken, pytest.raises(ItemParsingError) as raised:
        parse_item(3, 0, line, CHAT)
    assert raised.value.facts == {"index": 3}
