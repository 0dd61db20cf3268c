"""Goal: wanted offsets are read in few requests, and hardly anything else with them."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from topics.clients.record_fetcher import GAP_MAX, split_runs


@given(st.sets(st.integers(0, 5000), max_size=100))
def test_runs_hold_all_offsets_and_no_long_gap(offsets: set[int]) -> None:
    runs = split_runs(offsets)
    assert offsets <= {offset for run in runs for offset in run}
    for run in runs:
        inside = sorted(offsets & set(run))
        assert (inside[0], inside[-1]) == (run.start, run.stop - 1)
        assert all(b - a <= GAP_MAX + 1 for a, b in pairwise(inside))
    assert all(b.start - a.stop > GAP_MAX for a, b in pairwise(runs))
