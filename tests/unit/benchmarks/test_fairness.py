"""Goal: shares of tenants are compared only while all of them have work."""

import pytest

from benchmarks.statistics.fairness import (
    Service,
    count_between,
    jain_by_window,
    jain_index,
    service_gap,
)


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


def test_the_gap_is_the_largest_in_any_interval() -> None:
    first = [Service(1.0, 5.0), Service(4.0, 5.0)]
    second = [Service(2.0, 5.0), Service(3.0, 5.0)]
    # +5 after the first second, -5 after the third: ten between them.
    assert service_gap([first, second]) == 10.0
    assert service_gap([first, first]) == 0.0
    assert service_gap([first]) == 0.0


def test_services_at_the_same_time_make_no_gap() -> None:
    assert service_gap([[Service(1.0, 3.0)], [Service(1.0, 3.0)], [Service(1.0, 1.0)]]) == 2.0
