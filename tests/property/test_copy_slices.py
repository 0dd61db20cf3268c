"""Goal: all due copies are written, in transactions within their limits."""

import hypothesis.strategies as st
from hypothesis import given

from results.writer.copied_results import DueCopies, copy_slices

ITEMS, BYTES = 10, 1000
counts = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 1500)), max_size=20)


@given(counts=counts)
def test_every_original_is_in_one_slice_within_the_limits(counts: list[tuple[int, int]]) -> None:
    due = [DueCopies(index, *its) for index, its in enumerate(counts)]
    found = list(copy_slices(due, items_max=ITEMS, bytes_max=BYTES))
    assert sorted(o for part in found for o in part.originals) == list(range(len(due)))
    for part in found:
        its = [due[original] for original in part.originals]
        if part.is_complete:
            assert sum(one.copy_count for one in its) == part.count_max <= ITEMS
            assert sum(one.copy_count * one.size_bytes for one in its) <= BYTES
        else:
            (one,) = its
            assert 1 <= part.count_max <= ITEMS
            assert part.count_max == 1 or part.count_max * one.size_bytes <= BYTES
