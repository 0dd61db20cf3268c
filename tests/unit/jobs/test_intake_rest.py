"""Goal: notifications that lead to nothing take a small share of the time, and delay little."""

import pytest

from jobs.expansion.intake_loop import wakeup_delay_s


@pytest.mark.parametrize(
    ("look_s", "expected_s"), [(0.0, 0.01), (0.0005, 0.01), (0.005, 0.05), (0.02, 0.2), (3.0, 0.25)]
)
def test_a_rest_follows_from_the_price_of_a_look(look_s: float, expected_s: float) -> None:
    assert wakeup_delay_s(look_s) == pytest.approx(expected_s)
