"""Goal: shares of tenants are compared only while all of them have work."""

import pytest

from benchmarks.statistics.fairness import count_between, jain_by_window, jain_index


def test_jain_is_one_for_equals_and_one_nth_for_one_of_n() -> None:
    assert jain_index([3, 3, 3]) == 1.0
    assert jain_index([7, 0, 0, 0]) == 0.25
    assert jain_index([0, 0]) == 1.0
    assert jain_index([1, 3]) == pytest.approx(0.8)


def test_windows_end_when_the_first_tenant_has_run_out() -> None:
    steady = [0.5 * n for n in range(40)]
    late = [5.0 + 0.25 * n for n in range(40)]
    assert jain_by_window([steady, late], began_s=0.0, window_s=5.0) == [0.5, pytest.approx(0.9)]


def test_items_are_counted_after_the_start_and_up_to_the_end() -> None:
    assert count_between([1.0, 2.0, 2.0, 3.0], 1.0, 2.0) == 2
