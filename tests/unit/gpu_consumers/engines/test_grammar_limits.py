"""Goal: only grammars with few readings of a text and references that end reach vLLM."""

import json
from typing import Any

import pytest

from gpu_consumers.engines.error_answers import error_code_of
from gpu_consumers.engines.vllm.grammar_limits import costly_grammar_answer, is_costly
from gpu_consumers.engines.vllm.schema_references import (
    endless_reference_answer,
    has_endless_reference,
)


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


ITSELF = {"$ref": "#/$defs/a"}
NODE = {"type": "object", "properties": {"a": {"type": "array", "items": ITSELF}}}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}]},
        {"anyOf": [{"$ref": "#"}] * 1_000},
        {"allOf": [{"$ref": "#"}]},
        {"oneOf": [{"$ref": "#/oneOf/0"}]},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": ITSELF}} | ITSELF,
        {"$defs": {"a/ b": {"$ref": "#/$defs/a~1%20b"}}},
        {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}},
        {"type": "array", "items": {"$ref": "#/items"}},
        {"$ref": "#", "type": "object"},
    ],
)
def test_a_reference_without_end_is_found(schema: object) -> None:
    assert has_endless_reference(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"a": NODE}} | ITSELF,
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        {"anyOf": [{"$ref": "#"}, True]},
        {"$defs": {"a": {"type": "string"}, "b": ITSELF, "c": {"$ref": "#/$defs/b"}}},
        {"properties": {"$ref": {"type": "string"}, "anyOf": {"type": "string"}}},
        {"$ref": "#/$defs/missing"},
        {"$ref": "https://example.com/schema"},
        {"$ref": "#anchor"},
        {"$ref": 7},
        {"anyOf": []},
        "text",
        None,
    ],
)
def test_other_schemas_are_accepted(schema: object) -> None:
    assert not has_endless_reference(schema)


def test_long_chains_are_followed() -> None:
    links: dict[str, Any] = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(2_000)}
    assert not has_endless_reference({"$defs": links | {"d2000": {}}})
    assert has_endless_reference({"$defs": links | {"d2000": {"$ref": "#/$defs/d0"}}})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("response_format", {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}),
        ("structured_outputs", {"json": {"$ref": "#"}}),
        ("structured_outputs", {"json": '{"$ref":"#"}'}),
        ("tools", [{"type": "function", "function": {"parameters": {"$ref": "#"}}}]),
    ],
)
def test_a_body_with_such_a_schema_is_refused(field: str, value: object) -> None:
    answer = endless_reference_answer(json.dumps({"model": "m", field: value}).encode())
    assert answer is not None
    assert (answer.status_code, error_code_of(answer.body)) == (400, "invalid_value")
    assert json.loads(answer.body)["error"]["param"] == field


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[{"content":"{\\"$ref\\":\\"#\\"}"}]}',
        b'{"response_format":{"json_schema":[{"$ref":"#"}]},"tools":{"$ref":"#"}}',
        b'{"structured_outputs":{"json":"{\\"$ref\\""}}',
        b'["$ref"]',
        b'{"$ref"',
    ],
)
def test_other_bodies_are_left_to_vllm(body: bytes) -> None:
    assert endless_reference_answer(body) is None
