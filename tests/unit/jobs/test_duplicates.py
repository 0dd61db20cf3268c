"""Goal: equal bodies are copies of their first item; bodies that differ never are."""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from jobs.store.copies import DuplicateFinder, body_digest

BODY: dict[str, Any] = {
    "model": "small",
    "messages": [{"role": "user", "content": "é"}],
    "temperature": 0.5,
}


def copies_of(names: list[int], first_index: int = 0) -> list[tuple[int, int]]:
    found = DuplicateFinder()
    for name in names:
        found.add({"model": "small", "input": str(name)})
    assert found.count == len(names)
    return list(found.copies(first_index))


def test_field_order_of_a_body_does_not_change_its_digest() -> None:
    assert body_digest(dict(reversed(BODY.items()))) == body_digest(BODY)


@pytest.mark.parametrize(
    "other",
    [
        BODY | {"temperature": 0},
        BODY | {"seed": 1},
        BODY | {"temperature": "0.5"},
        BODY | {"messages": [{"content": "é", "role": "user"}]},
        BODY | {"messages": [{"role": "user", "content": "e\u0301"}]},
        BODY | {"user": None},
    ],
)
def test_bodies_with_possibly_different_responses_have_different_digests(
    other: dict[str, Any],
) -> None:
    assert body_digest(other) != body_digest(BODY)


def test_no_item_and_one_item_have_no_copies() -> None:
    assert copies_of([]) == []
    assert copies_of([1]) == []


@given(names=st.lists(st.integers(0, 6), max_size=60), first_index=st.integers(0, 60))
def test_a_copy_refers_to_the_first_identical_item(names: list[int], first_index: int) -> None:
    expected = [
        (index, names.index(name))
        for index, name in enumerate(names)
        if names.index(name) < index and index >= first_index
    ]
    assert copies_of(names, first_index) == expected


def test_many_copies_are_yielded_in_order() -> None:
    found = copies_of([n % 3 for n in range(25_000)])
    assert found == [(n, n % 3) for n in range(3, 25_000)]
