"""Goal: the estimate uses the best of the newest samples and advances with monotonic time only."""

import pytest

from core.clock import DatabaseTime


def test_nothing_is_known_before_a_sample() -> None:
    assert DatabaseTime(max).now_s(5.0) is None


@pytest.mark.parametrize(
    ("time", "samples", "monotonic_s", "expected_s"),
    [
        # A sample that was two seconds on the way does not move the estimate back.
        (DatabaseTime(max), [(1000.0, 10.0), (1001.0, 13.0)], 20.0, 1010.0),
        # One that was requested two seconds before its answer does not move it forward.
        (DatabaseTime(min), [(1002.0, 10.0), (1001.0, 11.0)], 11.0, 1001.0),
        # An adjusted clock is followed after enough samples.
        (
            DatabaseTime(max, sample_count=4),
            [(5000.0, 0.0), *((1000.0 + n, float(n)) for n in range(1, 5))],
            10.0,
            1010.0,
        ),
    ],
)
def test_the_best_of_the_newest_samples_counts(
    time: DatabaseTime, samples: list[tuple[float, float]], monotonic_s: float, expected_s: float
) -> None:
    for database_s, sampled_s in samples:
        time.add_sample(database_s, monotonic_s=sampled_s)
    assert time.now_s(monotonic_s) == pytest.approx(expected_s)
