"""Goal: the values of a JSON text are counted exactly, whatever its strings contain."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from core.bodies import body_limits
from core.bodies.body_limit_settings import DEFAULT_BODY_LIMITS
from core.bodies.body_limits import ELEMENTS_MAX, find_exceeded_limit

texts = st.text(alphabet=st.sampled_from('ab\\",[]{}: \n\u00e9\U0001f469'), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=30,
)
bodies = st.dictionaries(texts, values, max_size=6)


def containers(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(containers, value.values()))
    return 1 + sum(map(containers, value)) if isinstance(value, list) else 0


def separators(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max(0, len(inner) - 1) + sum(map(separators, inner))


@given(bodies, st.booleans(), st.integers(1, 40))
def test_values_outside_of_strings_are_counted(
    body: dict[str, Any], is_ascii: bool, slice_bytes: int
) -> None:
    text = json.dumps(body, ensure_ascii=is_ascii).encode()
    original = body_limits._SLICE_BYTES
    body_limits._SLICE_BYTES = slice_bytes  # type: ignore[misc]  # small: slices end in strings
    try:
        parts = b"".join(body_limits._outside_texts(text))
    finally:
        body_limits._SLICE_BYTES = original  # type: ignore[misc]
    assert parts.count(b"[") + parts.count(b"{") == containers(body)
    assert parts.count(b",") == separators(body)


@given(bodies)
def test_small_bodies_pass(body: dict[str, Any]) -> None:
    text = json.dumps(body).encode()
    assert find_exceeded_limit(text, DEFAULT_BODY_LIMITS) is None


@given(bodies, st.sampled_from(["messages", "tools", "stop", "documents", "unknown"]), values)
def test_a_long_list_is_refused_wherever_it_is(
    body: dict[str, Any], field: str, element: Any
) -> None:
    long = [element] * (ELEMENTS_MAX + 1)
    for value in (long, {"a": long}, [[long]], {"a": [{"b": long}]}):
        found = find_exceeded_limit(json.dumps(body | {field: value}).encode(), DEFAULT_BODY_LIMITS)
        assert found is not None
