"""Goal: priority first, then the octave of the time left; a past deadline ranks like none left."""

from hypothesis import given
from hypothesis import strategies as st

from core.urgency import PRIORITY_MAX, deadline_class, rank

priorities = st.integers(0, PRIORITY_MAX)
times = st.floats(-1e12, 1e12)


@given(priority=st.integers(1, PRIORITY_MAX), left_s=times, other_s=times)
def test_a_higher_priority_goes_first_whatever_the_deadlines(
    priority: int, left_s: float, other_s: float
) -> None:
    assert rank(priority, left_s) < rank(priority - 1, other_s)


@given(priority=priorities, left_s=times, more_s=st.floats(0, 1e9))
def test_less_time_never_ranks_later(priority: int, left_s: float, more_s: float) -> None:
    assert rank(priority, left_s) <= rank(priority, left_s + more_s)


@given(left_s=st.floats(1, 1e9))
def test_twice_the_time_is_another_class(left_s: float) -> None:
    assert deadline_class(2 * left_s) == deadline_class(left_s) + 1


def test_jobs_of_a_day_share() -> None:
    assert rank(5, 86_400) == rank(5, 86_400 - 3600) > rank(5, 3600)
    assert deadline_class(0) == deadline_class(-5) == 0


def test_nan_and_infinity_have_a_deadline_class() -> None:
    assert deadline_class(float("nan")) == deadline_class(float("-inf")) == 0
    assert deadline_class(float("inf")) == deadline_class(1e12)
