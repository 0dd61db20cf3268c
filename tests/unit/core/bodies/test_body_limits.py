"""Goal: a body that is expensive to validate is refused by its field; an ordinary one is not."""

import json
import tracemalloc
from typing import Any

import msgspec
import pytest

from core.bodies.body_limit_settings import DEFAULT_BODY_LIMITS, BodyLimits
from core.bodies.body_limits import ELEMENTS_MAX, find_exceeded_limit
from tests.support.hostile_bodies import chat_bodies, pooling_bodies

USER = {"role": "user", "content": "Hi"}
HOSTILE = {**chat_bodies("m"), **pooling_bodies("m")}
COUNTED = [
    *("empty messages", "short messages", "numbers as messages", "text parts", "numbers as parts"),
    *("string parts", "tool calls", "tools", "tools that are required", "stop strings"),
    *("bad words", "a long bad word", "biases", "stop tokens", "documents"),
    *("a deep schema", "a wide schema", "a long enumeration", "a schema of alternatives"),
    *("choices", "a long choice", "a long expression", "a grammar of many rules"),
    *("unknown numbers", "unknown fields", "deep lists", "prompts", "prompts of tokens", "tokens"),
    *("inputs", "inputs of tokens", "objects as inputs", "mixed inputs", "first texts"),
    *("second texts", "queries", "ranked documents", "ranked objects"),
]


def exceeded(body: dict[str, Any], **limits: int) -> tuple[str, str | None] | None:
    found = find_exceeded_limit(json.dumps(body).encode(), BodyLimits(**limits))
    return None if found is None else (found.message, found.param)


@pytest.mark.parametrize("name", COUNTED)
def test_a_hostile_body_is_refused_without_building_it(name: str) -> None:
    _, body = HOSTILE[name]
    tracemalloc.start()
    try:
        found = find_exceeded_limit(body, DEFAULT_BODY_LIMITS)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found is not None
    assert len(found.message) < 100
    assert peak < 32 * len(body) + 1_000_000


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [USER] * 2_048},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a, b"}] * 500}] * 9},
        {"messages": [USER], "tools": [{"type": "function", "function": {"name": "f"}}] * 256},
        {"prompt": [7] * 300_000},
        {"prompt": [[7] * 3_000] * 100},
        {"prompt": "[{,}]" * 500_000},
        {"prompt": '\\"[,{' * 200_000},
        {"input": [[7] * 100] * 2_048},
        {"input": ["a, b"] * 2_048},
        {"allowed_token_ids": list(range(100_000))},
        {"query": "a", "documents": ["b"] * 2_048},
        {"stop": ["a"] * 64, "logit_bias": {str(token): 1 for token in range(2_048)}},
    ],
)
def test_a_large_body_within_the_limits_passes(body: dict[str, Any]) -> None:
    assert exceeded(body) is None


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        ({"messages": [USER] * 2_049}, "'messages' must have at most 2048 elements.", "messages"),
        ({"input": ["a"] * 2_049}, "'input' must have at most 2048 elements.", "input"),
        ({"text_2": ["a"] * 2_049}, "'text_2' must have at most 2048 elements.", "text_2"),
        ({"documents": ["a"] * 2_049}, "'documents' must have at most 2048 elements.", "documents"),
        ({"tools": [{}] * 257}, "'tools' must have at most 256 elements.", "tools"),
        ({"stop": ["a"] * 65}, "'stop' must have at most 64 elements.", "stop"),
        ({"stop": "a" * 1_048_577}, "'stop' must have at most 1048576 characters.", "stop"),
        ({"bad_words": "a" * 4_097}, "'bad_words' must have at most 4096 characters.", "bad_words"),
        ({"bad_words": ["a" * 2_048] * 3}, "must have at most 4096 characters in all", "bad_words"),
        ({"messages": [{"content": [1] * 99}]}, "only objects and texts in the", "messages"),
        ({"input": [[{"content": [[]] * 99}]]}, "only objects and texts in the", "input"),
        ({"text_1": {"content": [None] * 99}}, "only objects and texts in the", "text_1"),
        ({"input": [1] * 99 + ["a"]}, "only numbers, only texts or only objects", "input"),
        ({"prompt": [[1] * 99 + ["a"]]}, "only numbers, only texts or only objects", "prompt"),
        ({"x": {"y": [""] * 2_049}}, "'x' must have at most 2048 elements in each", "x"),
        ({"input": [7] * 400_001}, "'input' must have at most 400000 values.", "input"),
        ({"messages": [{}] * 10_001}, "at most 10000 objects and lists.", "messages"),
        ({str(field): 1 for field in range(2_049)}, "body must have at most 2048 fields.", None),
    ],
)
def test_a_refusal_names_the_field_and_the_limit(
    body: dict[str, Any], message: str, param: str | None
) -> None:
    found = exceeded(body)
    assert found is not None
    assert message in found[0]
    assert found[1] == param


def levels(count: int) -> Any:
    value: Any = 1
    for _ in range(count):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("body", "allowed", "refused"),
    [
        (lambda n: {"x": levels(n - 1)}, 127, 128),
        (lambda n: {"response_format": levels(n)}, 63, 66),
        (lambda n: {"structured_outputs": {"regex": "a" * n}}, 4_096, 4_097),
        (lambda n: {"guided_regex": "a" * n}, 4_096, 4_097),
        (lambda n: {"tools": [{"function": {"pattern": "a" * n}}]}, 4_096, 4_097),
        (lambda n: {"structured_outputs": {"grammar": "a" * n}}, 32_768, 32_769),
        (lambda n: {"structured_outputs": {"choice": ["a"] * n}}, 512, 513),
        (lambda n: {"response_format": {"anyOf": [{"a": {}}] * n}}, 2_048, 2_049),
        (lambda n: {"response_format": [[{}] * n, [{}] * n, [{}] * n]}, 1_665, 1_667),
    ],
)
def test_nesting_and_schemas_are_limited(body: Any, allowed: int, refused: int) -> None:
    assert exceeded(body(allowed)) is None
    assert exceeded(body(refused)) is not None


def test_an_operator_changes_limits() -> None:
    assert exceeded({"messages": [USER] * 3_000}, messages_max=3_000) is None
    assert exceeded({"messages": [USER] * 100}, messages_max=99) is not None
    assert exceeded({"input": ["a"] * 3_000}, inputs_max=3_000) is None
    assert exceeded({"tools": [{}] * 300}, tools_max=300) is None
    assert exceeded({"input": [7] * 500_000}, values_max=600_000) is None


def test_a_message_does_not_quote_the_body() -> None:
    secret = {"response_format": {"the patient": {"pattern": "said" * 2_000}}}
    found = exceeded(secret)
    assert found is not None
    assert "said" not in found[0]
    assert "patient" not in found[0]


@pytest.mark.parametrize("text", [b"", b"[" * 5_000, b'{"x":' * 5_000, b"\xff" * 5_000, b"[1]"])
def test_what_is_no_object_is_left_to_its_reader(text: bytes) -> None:
    assert find_exceeded_limit(text, DEFAULT_BODY_LIMITS) is None


def test_names_may_be_escaped() -> None:
    body = msgspec.json.encode({"messages": [USER] * (ELEMENTS_MAX + 1)})
    escaped = body.replace(b"messages", rb"m\u0065ssages")
    found = find_exceeded_limit(escaped, DEFAULT_BODY_LIMITS)
    assert found is not None
    assert found.param == "messages"
