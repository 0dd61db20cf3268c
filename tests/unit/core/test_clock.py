"""Goal: the estimate uses the best of the newest samples and advances with monotonic time only."""

import pytest

from core.clock import DatabaseTime


def test_nothing_is_known_before_a_sample() -> None:
    assert DatabaseTime(max).now_s(5.0) is None


def test_late_samples_do_not_move_the_estimate_back() -> None:
    time = DatabaseTime(max)
    time.add_sample(1000.0, monotonic_s=10.0)
    time.add_sample(1001.0, monotonic_s=13.0)  # two seconds on the way
    assert time.now_s(20.0) == pytest.approx(1010.0)


def test_early_samples_do_not_move_the_estimate_forward() -> None:
    time = DatabaseTime(min)
    time.add_sample(1002.0, monotonic_s=10.0)  # asked two seconds before the answer came
    time.add_sample(1001.0, monotonic_s=11.0)
    assert time.now_s(11.0) == pytest.approx(1001.0)


def test_an_adjusted_database_clock_is_followed_after_enough_samples() -> None:
    time = DatabaseTime(max, sample_count=4)
    time.add_sample(5000.0, monotonic_s=0.0)
    for second in range(1, 5):
        time.add_sample(1000.0 + second, monotonic_s=float(second))
    assert time.now_s(10.0) == pytest.approx(1010.0)
