"""How much the rate of replicas falls while another one joins or leaves. Pure."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, TypeAlias

Counts: TypeAlias = Sequence[tuple[float, float]]
"""Readings of a growing counter: time in seconds, and the count, in the order of time."""

WINDOW_S: Final = 1.0
_STEP_S: Final = 0.1


def count_at(counts: Counts, at_s: float) -> float:
    """Return the count at a time, linear between two readings. Raises ValueError outside them."""
    if not counts or not counts[0][0] <= at_s <= counts[-1][0]:
        raise ValueError("the counter was not read at this time")
    after = min(bisect_right(counts, at_s, key=lambda one: one[0]), len(counts) - 1)
    (begin_s, low), (end_s, high) = counts[after - 1], counts[after]
    return low + (high - low) * (at_s - begin_s) / (end_s - begin_s)


def mean_rate(replicas: Sequence[Counts], since_s: float, until_s: float) -> float:
    """Return the rate of all replicas together."""
    grown = sum(count_at(one, until_s) - count_at(one, since_s) for one in replicas)
    return grown / (until_s - since_s)


def worst_second(
    replicas: Sequence[Counts], since_s: float, until_s: float, base_rate: float
) -> float:
    """Return the lowest rate of all replicas in a second of the time, as a part of `base_rate`."""
    worst, begin_s = float("inf"), since_s
    while begin_s + WINDOW_S <= until_s:
        worst = min(worst, mean_rate(replicas, begin_s, begin_s + WINDOW_S))
        begin_s += _STEP_S
    return worst / base_rate
