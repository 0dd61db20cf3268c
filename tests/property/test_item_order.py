"""Goal: an order is a permutation with contiguous groups, the same for the same file."""

from itertools import groupby, pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jobs.ordering import item_order
from jobs.ordering.item_order import FileItems, ItemOrder, find_order
from jobs.ordering.last_items import longest_last_items_first
from topics.records.records import Item

TOKENS = (64, 128, 256)

prefixes = st.lists(st.integers(0, 3), min_size=3, max_size=3)
some_items = st.lists(
    st.tuples(prefixes, st.integers(0, 2000), st.integers(0, 500)), min_size=1, max_size=60
)


def file_items(items: list[tuple[list[int], int, int]], salt: int = 0) -> FileItems:
    """Return items of whose prefixes none is longer than one that is missing."""
    hashes = np.zeros((len(items), 3), dtype=np.uint32)
    for n, (levels, _, _) in enumerate(items):
        for k, level in enumerate(levels):
            if not level:
                break
            hashes[n, k] = (level * 2654435761 + salt * (k + 1)) % 2**32 or 1
    columns = [np.array(column, dtype=np.uint32) for column in zip(*items, strict=True)][1:]
    prompts, outputs = columns
    return FileItems(hashes, prompts, outputs, np.full(len(items), 100, dtype=np.uint32))


def order_of(items: FileItems) -> ItemOrder:
    """Return the order, however small the file and its gain."""
    with patch.multiple(item_order, ITEMS_MIN=1, SAVED_SHARE_MIN=-(10**9)):
        order = find_order(items, TOKENS)
    assert order is not None
    return order


@given(items=some_items)
def test_an_order_is_a_permutation_with_contiguous_groups(items: list[Any]) -> None:
    found = file_items(items)
    order = order_of(found)
    sequence = order.sequence().tolist()
    assert sorted(sequence) == list(range(len(items)))
    assert [order.positions[item] for item in sequence] == list(range(len(items)))
    groups = [int(order.groups[item]) for item in sequence]
    runs = [group for group, _ in groupby(groups)]
    assert len(runs) == len(set(runs))
    assert [run for run in runs if run] == list(range(1, len(set(runs) - {0}) + 1))
    for item, group in enumerate(order.groups.tolist()):
        others = np.delete(found.prefixes[:, 0], item)
        assert bool(group) == bool(found.prefixes[item, 0] and found.prefixes[item, 0] in others)


@given(items=some_items)
def test_items_of_each_prefix_are_neighbours_at_every_level(items: list[Any]) -> None:
    found = file_items(items)
    sequence = order_of(found).sequence()
    for level in range(3):
        rows = found.prefixes[sequence][:, : level + 1]
        keys = [tuple(row) for row in rows.tolist()]
        shared = [key if all(key) and keys.count(key) > 1 else None for key in keys]
        runs = [key for key, _ in groupby(shared) if key is not None]
        assert len(runs) == len(set(runs))


@given(items=some_items, salt=st.integers(1, 2**31))
def test_the_order_does_not_depend_on_the_hashes(items: list[Any], salt: int) -> None:
    one, other = order_of(file_items(items)), order_of(file_items(items, salt))
    assert one.positions.tolist() == other.positions.tolist()
    assert one.groups.tolist() == other.groups.tolist()
    assert one.saved_tokens == other.saved_tokens


@given(items=some_items)
def test_inside_the_items_of_one_prefix_the_longest_prediction_is_first(items: list[Any]) -> None:
    found = file_items([([1, 0, 0], prompt, output) for _, prompt, output in items])
    sequence = order_of(found).sequence().tolist()
    keys = [(-int(found.outputs[item]), item) for item in sequence]
    assert all(a < b for a, b in pairwise(keys))


outputs = st.lists(st.integers(0, 50), min_size=1, max_size=40)


@given(outputs=outputs, position=st.integers(0, 1000), rest=st.integers(0, 1000))
def test_only_the_end_of_a_job_is_longest_first(
    outputs: list[int], position: int, rest: int
) -> None:
    items = [Item(n, "a", b"", 100, output_token_count=tokens) for n, tokens in enumerate(outputs)]
    total = position + len(items) + rest
    found = longest_last_items_first(items, position, total)
    first_last = total - int(total * 0.02) - position
    count = max(0, min(len(items), first_last))
    assert found[:count] == items[:count]
    assert found[count:] == sorted(items[count:], key=lambda item: -item.output_token_count)
