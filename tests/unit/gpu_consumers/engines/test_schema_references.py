"""Goal: a schema with a reference that never ends is refused; trees and lists are not."""

import json
from typing import Any

import pytest

from gpu_consumers.engines.error_answers import error_code_of
from gpu_consumers.engines.vllm.schema_references import (
    endless_reference_answer,
    has_endless_reference,
)

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
