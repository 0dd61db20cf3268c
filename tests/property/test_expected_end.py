"""Goal: the expected end counts what is served before, and never more than others can use."""

from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.expansion.expected_end import NewWork, expected_end_s, tenant_rate

NOW = 1e9
ME, OTHER = UUID(int=1), UUID(int=2)


def work(items: int, left_s: float, *, priority: int = 5, starts_s: float = 0.0) -> NewWork:
    return NewWork(items=items, priority=priority, deadline_s=NOW + left_s, starts_s=starts_s)


def due(*jobs: tuple[int, int, float]) -> dict[int, Counter[int]]:
    """Return the sums of jobs, given as priority, items and seconds to their deadline."""
    found: dict[int, Counter[int]] = {}
    for priority, items, left_s in jobs:
        found.setdefault(priority, Counter())[int((NOW + left_s) // 10)] += items
    return found


def end_s(new: NewWork, *jobs: tuple[int, int, float], rate: float = 2.0) -> float:
    return expected_end_s(new, due(*jobs), rate, NOW) - NOW


def test_work_that_is_due_before_and_higher_priorities_come_first() -> None:
    new = work(100, 1000)
    assert end_s(new) == 50
    assert end_s(new, (5, 40, 900)) == 70
    assert end_s(new, (5, 40, 1100)) == 50
    assert end_s(new, (9, 40, 5000)) == 70
    assert end_s(new, (4, 40, 10)) == 50


def test_a_job_that_cannot_end_holds_up_others_until_its_deadline_only() -> None:
    assert end_s(work(100, 1000), (5, 10**6, 100)) == pytest.approx(160, abs=10)
    assert end_s(work(100, 1000), (9, 10**6, 100), (5, 20, 50)) == pytest.approx(160, abs=10)


def test_work_that_begins_later_waits_for_its_time() -> None:
    assert end_s(work(100, 1000, starts_s=NOW + 500)) == 550
    assert end_s(work(100, 1000, starts_s=NOW + 5), (5, 40, 900)) == 70


@given(
    jobs=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 500), st.integers(0, 900))),
    items=st.integers(1, 500),
    left_s=st.integers(1, 900),
)
def test_all_work_is_the_most_that_can_come_first(
    jobs: list[tuple[int, int, float]], items: int, left_s: int
) -> None:
    found_s = end_s(work(items, left_s), *jobs)
    total = sum(count for _, count, _ in jobs) + items
    assert items / 2.0 <= found_s <= total / 2.0 + 1e-6


def test_a_tenant_gets_what_others_do_not_need() -> None:
    even = {ME: 1, OTHER: 1}
    assert tenant_rate(ME, {}, {ME: 1}, 10.0, 100.0) == 10
    assert tenant_rate(ME, {OTHER: 10**6}, even, 10.0, 100.0) == 5
    assert tenant_rate(ME, {OTHER: 100}, even, 10.0, 100.0) == 9
    assert tenant_rate(ME, {OTHER: 10**6}, {ME: 1, OTHER: 4}, 10.0, 100.0) == 2
    assert tenant_rate(ME, {OTHER: 10**6}, even, 1e-9, 1.0) > 0
