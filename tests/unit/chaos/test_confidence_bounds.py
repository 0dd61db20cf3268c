"""Goal: the bound of a failure rate is exact where it is known in closed form."""

import pytest

from chaos.reports.confidence_bounds import failure_rate_bound, probability_of_at_most


@pytest.mark.parametrize("trials", [1, 5, 20, 200, 5000])
def test_without_a_failure_the_bound_matches_its_closed_form(trials: int) -> None:
    assert failure_rate_bound(0, trials) == pytest.approx(1 - 0.05 ** (1 / trials), rel=1e-9)


def test_the_rule_of_three_is_close_for_many_trials() -> None:
    assert failure_rate_bound(0, 500) == pytest.approx(3 / 500, rel=0.01)


@pytest.mark.parametrize(("failures", "trials", "bound"), [(1, 10, 0.3942), (5, 100, 0.1023)])
def test_bounds_with_failures_are_those_of_published_tables(
    failures: int, trials: int, bound: float
) -> None:
    assert failure_rate_bound(failures, trials) == pytest.approx(bound, abs=1e-4)


def test_without_trials_or_successes_the_bound_is_one() -> None:
    assert failure_rate_bound(0, 0) == 1.0
    assert failure_rate_bound(3, 3) == 1.0


def test_more_failures_than_trials_raise() -> None:
    with pytest.raises(ValueError, match="failures"):
        failure_rate_bound(2, 1)


def test_probabilities_add_up() -> None:
    assert probability_of_at_most(7, 7, 0.3) == pytest.approx(1.0)
    assert probability_of_at_most(0, 4, 0.5) == pytest.approx(1 / 16)
    assert probability_of_at_most(2, 4, 0.0) == 1.0
    assert probability_of_at_most(2, 4, 1.0) == 0.0
