"""Goal: the worst second of replicas is found, and a short dip counts by its part of a second."""

import pytest

from benchmarks.scaling.step_rates import count_at, mean_rate, worst_second


def counter(dip_s: float) -> list[tuple[float, float]]:
    """Return a counter at 100 a second that stands still for `dip_s` from second 5 on."""
    readings, count = [], 0.0
    for tick in range(101):
        at_s = tick / 10
        readings.append((at_s, count))
        count += 0.0 if 5 <= at_s < 5 + dip_s - 1e-9 else 10.0
    return readings


def test_counts_are_linear_between_readings() -> None:
    readings = [(0.0, 0.0), (1.0, 10.0), (3.0, 30.0)]
    assert [count_at(readings, at_s) for at_s in (0.0, 0.5, 1.0, 2.0, 3.0)] == [0, 5, 10, 20, 30]
    with pytest.raises(ValueError, match="not read"):
        count_at(readings, 3.1)


def test_the_worst_second_is_a_part_of_the_rate_before() -> None:
    steady = counter(0)
    base = mean_rate([steady, steady], 0, 4)
    assert base == pytest.approx(200)
    assert worst_second([steady, steady], 4, 9, base) == pytest.approx(1.0)
    assert worst_second([steady, counter(1.0)], 4, 9, base) == pytest.approx(0.5)
    assert worst_second([counter(0.3)], 4, 9, 100) == pytest.approx(0.7)
