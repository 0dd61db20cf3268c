"""Finds grammars in a body that would stop vLLM's engine for seconds at each token.

xgrammar parses what the model has written along all readings of the grammar at once, without a
limit, and computes for each token which tokens may follow: a regular expression of 105 characters
took 1.8 s a token, a context-free grammar of 42 characters more than 9 s. No other sequence moves
meanwhile, and no request can be aborted. The cost of a grammar is not known before it is used, so
only forms are accepted whose number of readings is small. Pure.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.error_answers import error_answer

PATTERN_CHARS_MAX: Final = 256
QUANTIFIERS_MAX: Final = 24
"""Quantifiers of one pattern; a sequence of optional parts has many readings."""

REPEATED_GROUPS_MAX: Final = 8
REPETITIONS_MAX: Final = 1_000
"""Sum of the bounds of a pattern's `{m,n}`."""

BOUNDED_ALTERNATIVES_MAX: Final = 16
"""Texts and lists with bounds in the alternatives of one field's schemas: xgrammar counts through
all of them at once, and compiled 50 for 5 s."""

_MARKS: Final = (
    *(b"pattern", b"regex", b"grammar", b"structural_tag", b"anyOf", b"oneOf", b"allOf"),
    b"\\u00",
)
_ALTERNATIVES: Final = ("anyOf", "oneOf", "allOf")
_BOUNDED: Final = frozenset(
    {"minLength", "maxLength", "pattern", "format", "minItems", "maxItems", "minimum", "maximum"}
)
_DEFINITIONS: Final = ("$defs", "definitions")
_TOKENS: Final = re.compile(
    r"(?P<escape>\\.)|(?P<chars>\[\^?\]?(?:\\.|[^\]\\])*\])|(?P<open>\((?:\?(?:[:=!]|<[=!]|P?<\w+>))?)"
    r"|(?P<close>\))|(?P<quantifier>[*+?]|\{\d+(?:,\d*)?\})\??|(?P<either>\|)|(?P<char>.)",
    re.S,
)
_BOUNDS: Final = re.compile(r"\d+")


def costly_grammar_answer(body: bytes) -> EngineAnswer | None:
    """Return the refusal of a body with a grammar that may be costly; None without one."""
    if not any(mark in body for mark in _MARKS):
        return None
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # vLLM refuses it
    if not isinstance(fields, dict):
        return None
    for name in ("structured_outputs", "response_format", "tools"):
        if (reason := _find_reason(fields.get(name))) is not None:
            return error_answer(400, f"'{name}' {reason}", param=name, code="invalid_value")
    return None


def _find_reason(value: Any) -> str | None:
    for inner in _objects(value):
        if isinstance(inner.get("grammar"), str):
            return "must not contain a grammar: this server accepts schemas and simple patterns."
        tag = inner.get("structural_tag")
        if isinstance(tag, str) or inner.get("type") == "structural_tag":
            return "must not contain a structural tag: this server accepts schemas."
        patterns = [inner.get("regex"), inner.get("pattern")]
        if isinstance(keyed := inner.get("patternProperties"), dict):
            patterns += keyed
        if any(isinstance(pattern, str) and is_costly(pattern) for pattern in patterns):
            return (
                f"must have patterns of at most {PATTERN_CHARS_MAX} characters, "
                f"{QUANTIFIERS_MAX} quantifiers and no repetition or choice inside of a repetition."
            )
    if _bounded_alternatives(value) > BOUNDED_ALTERNATIVES_MAX:
        return (
            f"must have at most {BOUNDED_ALTERNATIVES_MAX} values with bounds, formats or patterns "
            "in the alternatives of a schema (anyOf, oneOf, allOf)."
        )
    return None


def _bounded_alternatives(value: Any) -> int:
    """Return how many schemas with bounds are in alternatives, those that they refer to included.

    An optional value, which is a schema or null, is no alternative.
    """
    count, definitions, refers = 0, 0, False
    for inner in _objects(value):
        for name in _DEFINITIONS:
            definitions += sum(map(_is_bounded, _objects(inner.get(name))))
        for name in _ALTERNATIVES:
            alternatives = inner.get(name)
            if not isinstance(alternatives, list) or _is_optional(alternatives):
                continue
            for alternative in _objects(alternatives):
                count += _is_bounded(alternative)
                refers = refers or "$ref" in alternative
    return count + (definitions if refers else 0)


def _is_optional(alternatives: list[Any]) -> bool:
    return len(alternatives) <= 2 and {"type": "null"} in alternatives


def _is_bounded(schema: Mapping[str, Any]) -> bool:
    return not _BOUNDED.isdisjoint(schema)


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield each object inside a value; a schema may be a text, in the field `json`."""
    waiting = [value]
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, list):
            waiting += inner
        elif isinstance(inner, dict):
            yield inner
            waiting += inner.values()
            if isinstance(text := inner.get("json"), str):
                try:
                    waiting.append(msgspec.json.decode(text))
                except (msgspec.DecodeError, RecursionError):
                    continue  # vLLM refuses it


def is_costly(pattern: str) -> bool:
    """Return whether a regular expression may have many readings of one text."""
    if len(pattern) > PATTERN_CHARS_MAX:
        return True
    quantifiers = repeated_groups = repetitions = 0
    groups = [False]  # of each open group: whether it has a quantifier or a choice
    closed = None  # the same of the group that ended just before
    for token in _TOKENS.finditer(pattern):
        kind = token.lastgroup
        if kind == "open":
            groups.append(False)
        elif kind == "either":
            groups[-1] = True
        elif kind == "quantifier":
            quantifiers += 1
            repetitions += max(map(int, _BOUNDS.findall(token[0])), default=0)
            if closed is not None:
                repeated_groups += 1
                if closed and not token[0].startswith("?"):
                    return True
            groups[-1] = True
        ended = groups.pop() if kind == "close" and len(groups) > 1 else None
        if ended:
            groups[-1] = True
        closed = ended
    return (
        quantifiers > QUANTIFIERS_MAX
        or repeated_groups > REPEATED_GROUPS_MAX
        or repetitions > REPETITIONS_MAX
    )
