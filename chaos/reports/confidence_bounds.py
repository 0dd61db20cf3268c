"""Exact upper confidence bounds on a failure rate."""

import math
from typing import Final

CONFIDENCE: Final = 0.95
_STEPS: Final = 60
"""Halvings of the interval, more than a float can resolve."""


def failure_rate_bound(failures: int, trials: int, confidence: float = CONFIDENCE) -> float:
    """Return the upper confidence bound on the failure rate.

    The one-sided bound of Clopper and Pearson (1934). Without a failure it is close to the rule of
    three, 3 / trials at 95 %; without a trial it is 1. Raises ValueError unless 0 <= failures <=
    trials.
    """
    if not 0 <= failures <= trials:
        raise ValueError("failures lie between 0 and the trials")
    if failures == trials:
        return 1.0
    low, high = failures / trials, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if probability_of_at_most(failures, trials, middle) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def probability_of_at_most(failures: int, trials: int, rate: float) -> float:
    """Return the probability of at most `failures` when each trial fails at `rate`."""
    if rate <= 0:
        return 1.0
    if rate >= 1:
        return 1.0 if failures >= trials else 0.0
    hit, miss = math.log(rate), math.log1p(-rate)
    return math.fsum(
        math.exp(_log_choose(trials, k) + k * hit + (trials - k) * miss)
        for k in range(failures + 1)
    )


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
