"""Finds references in JSON schemas that lead only to themselves.

`{"$ref": "#"}` describes no value: JSON Schema forbids a reference that is followed without end.
xgrammar compiles it to a grammar that allows no token, and vLLM answers 500 once it gets there. A
tree, in which a property or an element refers to the schema around it, is no such reference. Pure.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from core.bodies.body_limits import ELEMENTS_MAX
from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.error_answers import error_answer

_ALTERNATIVES: Final = ("anyOf", "oneOf", "allOf")
_INDEXES: Final = frozenset(map(str, range(ELEMENTS_MAX)))


def endless_reference_answer(body: bytes) -> EngineAnswer | None:
    """Return the refusal of a body with a reference without end in a schema; None without one."""
    if b'"$ref"' not in body and rb"\"$ref\"" not in body:
        return None
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # vLLM refuses it
    if not isinstance(fields, dict):
        return None
    for name, schema in _schemas(fields):
        if has_endless_reference(schema):
            message = f"'{name}' must not have a schema with a reference that leads only to itself."
            return error_answer(400, message, param=name, code="invalid_value")
    return None


def _schemas(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the schemas of a body, with the names of their fields."""
    name = "response_format"
    yield name, _inner(fields, name, "json_schema", "schema")
    name = "structured_outputs"
    schema = _inner(fields, name, "json")
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(schema)
        except (msgspec.DecodeError, RecursionError):
            schema = None  # vLLM refuses it
    yield name, schema
    tools = fields.get("tools")
    for tool in tools if isinstance(tools, list) else ():
        yield "tools", _inner(tool, "function", "parameters")


def _inner(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def has_endless_reference(root: Any) -> bool:
    """Return whether a schema in `root` is only references to schemas that never end."""
    followers: dict[int, list[int]] = defaultdict(list)  # schemas by one that they may stand for
    waiting, ended = [], set()
    conditional = set()
    for schema in _objects(root):
        nexts = _next_schemas(root, schema)
        if nexts is None:
            waiting.append(id(schema))
            continue
        conditional.add(id(schema))
        for one in nexts:
            followers[id(one)].append(id(schema))
            if not isinstance(one, dict):
                waiting.append(id(one))
    while waiting:
        schema_id = waiting.pop()
        if schema_id not in ended:
            ended.add(schema_id)
            waiting += followers[schema_id]
    return not conditional <= ended


def _next_schemas(root: Any, schema: Mapping[str, Any]) -> list[Any] | None:
    """Return the schemas, one of which this one stands for; None if it describes values itself."""
    if isinstance(pointer := schema.get("$ref"), str):
        target = _resolve(root, pointer)
        return None if target is None else [target]
    for name in _ALTERNATIVES:
        if isinstance(alternatives := schema.get(name), list) and alternatives:
            return alternatives
    return None


def _resolve(root: Any, pointer: str) -> Any:
    """Return the value that a reference within the document names; None for any other."""
    if pointer == "#":
        return root
    if not pointer.startswith("#/"):
        return None
    value = root
    for part in pointer[2:].split("/"):
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and name in _INDEXES and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    waiting = [value]
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, list):
            waiting += inner
        elif isinstance(inner, dict):
            yield inner
            waiting += inner.values()
