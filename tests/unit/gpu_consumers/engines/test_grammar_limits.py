"""Goal: only grammars with few readings of a text reach vLLM; common ones do."""

import json
from typing import Any

import pytest

from gpu_consumers.engines.vllm.grammar_limits import costly_grammar_answer, is_costly


@pytest.mark.parametrize(
    "pattern",
    [
        r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2})?(Z|[+-]\d{2}:\d{2})$",
        r"^[a-z0-9._%+-]+@[a-z0-9.-]+\.[a-z]{2,}$",
        r"^(?:red|green|blue)$",
        r"^(\+\d{1,3} )?\(?\d{3}\)?[ .-]\d{3}[ .-]\d{4}$",
        r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
        r"^.{1,500}$",
        r"\(\)*[()*|]+",
        "",
    ],
)
def test_common_patterns_are_accepted(pattern: str) -> None:
    assert not is_costly(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "((a|b|ab|ba)*c?){200}",
        "(a|b|ab|ba)*",
        r"(\w*\s?){100}",
        "((a{1,500}){1,500}){1,500}",
        "(?:a+)+",
        "(?P<x>a*)*",
        "((a*))*",
        "(a?)*",
        "([a-z]+)+?",
        "a?" * 100,
        r"\w{0,1000}" * 10,
        "(ab)*" * 20,
        "a" * 257,
    ],
)
def test_patterns_with_many_readings_are_refused(pattern: str) -> None:
    assert is_costly(pattern)


COSTLY = "(a|b)*" * 20


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {"regex": COSTLY}}, "structured_outputs"),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs"),
        ({"structured_outputs": {"json": {"pattern": COSTLY}}}, "structured_outputs"),
        (
            {"structured_outputs": {"json": json.dumps({"a": [{"pattern": COSTLY}]})}},
            "structured_outputs",
        ),
        ({"response_format": {"type": "structural_tag", "format": {}}}, "response_format"),
        ({"response_format": {"json_schema": {"schema": {"pattern": COSTLY}}}}, "response_format"),
        (
            {"response_format": {"json_schema": {"schema": {"patternProperties": {COSTLY: {}}}}}},
            "response_format",
        ),
        ({"tools": [{"function": {"parameters": {"items": [{"pattern": COSTLY}]}}}]}, "tools"),
    ],
)
def test_a_refusal_names_the_field(fields: dict[str, Any], param: str) -> None:
    answer = costly_grammar_answer(json.dumps(fields).encode())
    assert answer is not None
    error = json.loads(answer.body)["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, "invalid_value")


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": "What is a pattern, a regex, a grammar?"}]},
        {"structured_outputs": {"regex": "[a-z]+"}},
        {"response_format": {"json_schema": {"schema": {"properties": {"pattern": {}}}}}},
        {"tools": [{"function": {"parameters": {"properties": {"grammar": {"type": "string"}}}}}]},
        {"grammar": "unknown fields are not read", "structured_outputs": None},
        [],
    ],
)
def test_other_bodies_pass(fields: Any) -> None:
    assert costly_grammar_answer(json.dumps(fields).encode()) is None


def test_escaped_names_are_found() -> None:
    body = rb'{"structured_outputs":{"gr\u0061mmar":"root ::= r"}}'
    assert costly_grammar_answer(body) is not None


def schema(*alternatives: object, **fields: object) -> bytes:
    whole = {"anyOf": alternatives, **fields}
    return json.dumps({"response_format": {"json_schema": {"schema": whole}}}).encode()


BOUNDED = {"type": "string", "maxLength": 5}


@pytest.mark.parametrize(
    ("body", "is_refused"),
    [
        (schema(*[BOUNDED] * 16), False),
        (schema(*[BOUNDED] * 17), True),
        (schema(*[{"type": "string"}] * 100), False),
        (schema({"properties": {f"p{n}": BOUNDED for n in range(17)}}, {"type": "string"}), True),
        (schema({"type": "object", "properties": {}}, {"type": "null"}, a=[BOUNDED] * 50), False),
        (schema({"anyOf": [BOUNDED] * 9}, {"oneOf": [BOUNDED] * 9}), True),
        (
            schema({"$ref": "#/$defs/a"}, {}, **{"$defs": {f"d{n}": BOUNDED for n in range(20)}}),
            True,
        ),
    ],
)
def test_alternatives_with_bounds_are_limited(body: bytes, is_refused: bool) -> None:
    assert (costly_grammar_answer(body) is not None) == is_refused


def test_optional_values_with_bounds_are_common() -> None:
    optional = {"anyOf": [BOUNDED, {"type": "null"}]}
    properties = {f"p{number}": optional for number in range(100)}
    body = {"tools": [{"function": {"parameters": {"properties": properties}}}]}
    assert costly_grammar_answer(json.dumps(body).encode()) is None
