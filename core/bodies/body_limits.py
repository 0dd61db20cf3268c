"""Limits of what one request body contains, checked before anything validates it.

A body of a few hundred kilobytes can hold a hundred thousand messages. Building them as objects of
a request model takes seconds, during which the process serves no other request. A body within the
limits is validated in milliseconds.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import msgspec

from core.bodies.body_limit_settings import BodyLimits

NESTING_MAX: Final = 127
"""Levels of objects and lists in a body, the body included; a line of a file adds one."""

ELEMENTS_MAX: Final = 2_048
"""Elements of each list and fields of each object; a list of tokens may have more."""

CONTAINERS_MAX: Final = 10_000
"""Objects and lists in a body."""

STOP_STRINGS_MAX: Final = 64
BAD_WORDS_MAX: Final = 256
CHOICES_MAX: Final = 512
"""Answers to choose from, in `structured_outputs`."""

SCHEMA_NESTING_MAX: Final = 64
"""Levels of objects and lists in one field with schemas; ten levels of properties need 30."""

SCHEMA_CONTAINERS_MAX: Final = 5_000
"""Objects and lists in one field with schemas."""

STOP_CHARS_MAX: Final = 1024 * 1024
"""Characters of all stop strings: vLLM searches the output for them, which is shorter."""

BAD_WORDS_CHARS_MAX: Final = 4_096
"""Characters of all bad words: vLLM splits them into tokens."""

GRAMMAR_CHARS_MAX: Final = 32_768
"""Characters of a grammar, of a schema as text, and of each text in a schema."""

PATTERN_CHARS_MAX: Final = 4_096
"""Characters of a regular expression."""

_SCHEMA_FIELDS: Final = frozenset(
    {
        "guided_choice",
        "guided_grammar",
        "guided_json",
        "guided_regex",
        "response_format",
        "structured_outputs",
        "tools",
    }
)
_PATTERN_FIELDS: Final = ("pattern", "regex")
_WORDS_CHARS_MAX: Final = {"bad_words": BAD_WORDS_CHARS_MAX, "stop": STOP_CHARS_MAX}
_INPUT_FIELDS: Final = (
    "data_1",
    "data_2",
    "documents",
    "input",
    "items",
    "queries",
    "text_1",
    "text_2",
)

_MESSAGE_FIELDS: Final = frozenset({"messages", "query", *_INPUT_FIELDS})

_PLAIN_SIGNS: Final = 64  # no limit of a count or of nesting is lower
_PLAIN_BYTES: Final = PATTERN_CHARS_MAX  # no limit of a text is lower
_SLICE_BYTES: Final = 65_536
_PARTS: Final = frozenset({dict, str})
_INTEGERS: Final = frozenset({int})
_NUMBERS_FIELDS: Final = frozenset({"allowed_token_ids", "input", "prompt"})
_DECODE: Final = msgspec.json.Decoder().decode


_Fields = msgspec.defstruct(
    "_Fields",
    [
        (name, msgspec.Raw, msgspec.Raw())
        for name in ("messages", "prompt", "query", *_INPUT_FIELDS, *sorted(_SCHEMA_FIELDS))
    ],
)
_LINE: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(
    msgspec.defstruct("_Line", [("body", _Fields | None, None)], bases=(_Fields,))
)
"""The fields of a body, or of the body in a line, that may be large."""


@dataclass(frozen=True, slots=True)
class ExceededLimit:
    """A limit that a body exceeds; the message never quotes the body."""

    message: str
    param: str | None = None  # the field, or None for the body as a whole


def find_exceeded_limit(text: bytes, limits: BodyLimits) -> ExceededLimit | None:
    """Return the first limit that the JSON object `text` exceeds; None if it exceeds none.

    A text that is not a JSON object exceeds no limit: its reader refuses it. A body with few values
    is not decoded; a larger one is decoded only after its values are counted.
    """
    if has_few_values(text):
        return None
    if exceeded := find_exceeded_count(text, limits):
        return exceeded
    try:
        body = _DECODE(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return find_exceeded_field(body, limits) if type(body) is dict else None


def has_few_values(text: bytes) -> bool:
    """Return whether a body is so small and plain that it cannot exceed a limit."""
    if len(text) > _PLAIN_BYTES:
        return False
    most = _PLAIN_SIGNS + 1
    rest = text.replace(b",", b"", most).replace(b"[", b"", most).replace(b"{", b"", most)
    return len(text) - len(rest) <= _PLAIN_SIGNS


def find_exceeded_count(text: bytes, limits: BodyLimits) -> ExceededLimit | None:
    """Check the number of values in a body, or a line with one, without memory for them."""
    count_max = min(CONTAINERS_MAX, limits.values_max)
    if len(text) <= count_max or _sign_count(text) <= count_max:
        return None  # whatever of it is inside texts
    containers = separators = 0
    for part in _outside_texts(text):
        opened = part.count(b"[") + part.count(b"{")
        containers += opened
        separators += part.count(b",")
    if containers > CONTAINERS_MAX:
        return _of_largest_field(text, f"must have at most {CONTAINERS_MAX} objects and lists.")
    if containers + separators > limits.values_max:
        return _of_largest_field(text, f"must have at most {limits.values_max} values.")
    return None


def _of_largest_field(text: bytes, rule: str) -> ExceededLimit:
    """Return an exceeded limit, with the field that fills most of the body or line."""
    try:
        line = _LINE.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ExceededLimit(f"The request body {rule}")
    fields = msgspec.structs.asdict(line if line.body is None else line.body)
    fields.pop("body", None)
    largest = max(fields, key=lambda name: len(fields[name]))
    if 2 * len(fields[largest]) < len(text):
        return ExceededLimit(f"The request body {rule}")
    return ExceededLimit(f"'{largest}' {rule}", largest)


def _sign_count(text: bytes) -> int:
    """Return an upper bound of the values in `text`: each follows a comma or an opening bracket.

    Counts bytes by the length that their removal takes: in one pass.
    """
    return len(text) - len(text.translate(None, b",[{"))


def _outside_texts(text: bytes) -> Iterator[bytes]:
    """Yield a JSON text without its strings, in parts."""
    plain = text.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in text else text
    is_inside = 0
    for start in range(0, len(plain), _SLICE_BYTES):
        parts = plain[start : start + _SLICE_BYTES].split(b'"')
        yield b"".join(parts[is_inside::2])
        is_inside = (is_inside + len(parts) - 1) % 2


def find_exceeded_field(body: Mapping[str, Any], limits: BodyLimits) -> ExceededLimit | None:
    """Return the first limit that a decoded body exceeds; None if it exceeds none."""
    if len(body) > ELEMENTS_MAX:
        return ExceededLimit(f"The request body must have at most {ELEMENTS_MAX} fields.")
    for name, value in body.items():
        if (message := _broken_rule(name, value, limits)) is not None:
            return ExceededLimit(f"'{name}' must have {message}.", name)
    return None


def _broken_rule(name: str, value: Any, limits: BodyLimits) -> str | None:
    """Return the rule that a field of a body breaks, as the end of a sentence."""
    is_schema = name in _SCHEMA_FIELDS
    if type(value) is list:
        count_max = _elements_max(name, limits)
        if name in _NUMBERS_FIELDS:
            if not all(map(_is_of_one_kind, (value, *_containers(value)))):
                return "only numbers, only texts or only objects in a list"
            value = [element for element in value if type(element) is not int]
        if len(value) > count_max:
            return f"at most {count_max} elements"
        chars_max = _WORDS_CHARS_MAX.get(name)
        if chars_max is not None and sum(map(_char_count, value)) > chars_max:
            return f"at most {chars_max} characters in all"
        level = _containers(value)
    elif _char_count(value) > _WORDS_CHARS_MAX.get(name, math.inf):
        return f"at most {_WORDS_CHARS_MAX[name]} characters"
    elif is_schema:
        level = [{name.removeprefix("guided_"): value}]
    else:
        level = [value] if type(value) is dict else []
    if name in _NUMBERS_FIELDS:
        level = [
            one for one in level if type(one) is dict or not _INTEGERS.issuperset(map(type, one))
        ]
    nesting_max = SCHEMA_NESTING_MAX if is_schema else NESTING_MAX - 1
    is_inside = type(value) is list  # its elements are one level deeper
    kind = "schema" if is_schema else "message" if name in _MESSAGE_FIELDS else "other"
    return _broken_shape(level, nesting_max - is_inside, kind)


def _elements_max(name: str, limits: BodyLimits) -> int:
    """Return the limit of a list that is a field of the body."""
    if name == "messages":
        return limits.messages_max
    if name in _INPUT_FIELDS:
        return limits.inputs_max
    own = {
        "bad_words": BAD_WORDS_MAX,
        "guided_choice": CHOICES_MAX,
        "stop": STOP_STRINGS_MAX,
        "tools": limits.tools_max,
    }
    return own.get(name, ELEMENTS_MAX)


def _broken_shape(level: list[Any], nesting_max: int, kind: str) -> str | None:
    """Check the objects and lists in `level` and in them, level by level."""
    count = 0
    for _ in range(nesting_max):
        count += len(level)
        if kind == "schema" and count > SCHEMA_CONTAINERS_MAX:
            return f"at most {SCHEMA_CONTAINERS_MAX} objects and lists"
        for value in level:
            if len(value) > ELEMENTS_MAX:
                return f"at most {ELEMENTS_MAX} elements in each list and object"
            if type(value) is not dict:
                continue
            if kind == "schema" and (broken := _broken_text(value)):
                return broken
            if kind == "message" and not _are_parts(value):
                return "only objects and texts in the lists of its elements"
        level = _containers(chain.from_iterable(map(_elements, level)))
        if not level:
            return None
    return f"at most {nesting_max} levels of objects and lists"


def _broken_text(value: dict[str, Any]) -> str | None:
    """Check the texts of one object in a field with schemas."""
    for name, text in value.items():
        chars_max = PATTERN_CHARS_MAX if name in _PATTERN_FIELDS else GRAMMAR_CHARS_MAX
        if _char_count(text) > chars_max:
            return (
                f"at most {chars_max} characters in each "
                f"{'pattern' if name in _PATTERN_FIELDS else 'text'}"
            )
        if name == "choice" and type(text) is list:
            if len(text) > CHOICES_MAX:
                return f"at most {CHOICES_MAX} choices"
            if any(_char_count(choice) > PATTERN_CHARS_MAX for choice in text):
                return f"at most {PATTERN_CHARS_MAX} characters in each choice"
    return None


def _char_count(value: object) -> int:
    return len(value) if type(value) is str else 0


def _is_of_one_kind(value: Any) -> bool:
    """Whether the elements of a list are alike; vLLM tries each kind of input on all of them."""
    return type(value) is not list or len(set(map(type, value))) <= 1


def _are_parts(message: dict[str, Any]) -> bool:
    """Whether the lists in a message or document hold objects and texts, as those of parts must.

    Anything else costs pydantic 40 µs an element, to say that it is of none of twenty types.
    """
    return all(
        _PARTS.issuperset(map(type, value)) for value in message.values() if type(value) is list
    )


def _elements(value: Any) -> Iterable[Any]:
    return value.values() if type(value) is dict else value


def _containers(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if type(value) is dict or type(value) is list]
