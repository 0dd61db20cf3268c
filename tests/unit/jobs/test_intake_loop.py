"""Goal: useless notifications cost a small share of the time and delay new jobs little."""

import pytest

from jobs.expansion.intake_loop import wakeup_delay_s


@pytest.mark.parametrize(
    ("idle_round_s", "expected_s"),
    [(0.0, 0.01), (0.0005, 0.01), (0.005, 0.05), (0.02, 0.2), (3.0, 0.25)],
)
def test_wakeup_delay_follows_the_duration_of_an_idle_round(
    idle_round_s: float, expected_s: float
) -> None:
    assert wakeup_delay_s(idle_round_s) == pytest.approx(expected_s)
