"""Shares of tenants over time: Jain's index, and what ran before a first result."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple


def jain_index(shares: Sequence[float]) -> float:
    """Return Jain's fairness index of at least one share: 1 when all are equal, 1/n at worst.

    Source: Jain, Chiu and Hawe, "A quantitative measure of fairness", DEC-TR-301 (1984).
    """
    total = sum(shares)
    if not total:
        return 1.0
    return total * total / (len(shares) * sum(share * share for share in shares))


def jain_by_window(
    finished_s: Sequence[Sequence[float]], *, began_s: float, window_s: float
) -> list[float]:
    """Return Jain's index of each whole window until the first tenant has run out of items.

    `finished_s` holds, for each tenant, the ascending times at which its items ended.
    """
    until_s = min(times[-1] for times in finished_s)
    found = []
    for number in range(int((until_s - began_s) // window_s)):
        first_s = began_s + number * window_s
        shares = [
            bisect_left(times, first_s + window_s) - bisect_left(times, first_s)
            for times in finished_s
        ]
        found.append(jain_index(shares))
    return found


def count_between(finished_s: Sequence[float], after_s: float, until_s: float) -> int:
    """Return how many of these ascending times lie in (`after_s`, `until_s`]."""
    return bisect_right(finished_s, until_s) - bisect_right(finished_s, after_s)


class Service(NamedTuple):
    """A service that a client had received at a time."""

    time_s: float
    amount: float


def service_gap(clients: Sequence[Sequence[Service]]) -> float:
    """Return the largest difference of the services of two clients in any interval.

    The services of a client are divided by its weight; all clients have work all the time. Of two
    clients it is the range of the difference of their sums. Source: Sheng et al., "Fairness in
    Serving Large Language Models" (OSDI 2024), definition 4.1.
    """
    return max(
        (_pair_gap(first, second) for first, second in combinations(clients, 2)), default=0.0
    )


def _pair_gap(first: Sequence[Service], second: Sequence[Service]) -> float:
    changes: dict[float, float] = {}
    for sign, services in ((1, first), (-1, second)):
        for time_s, amount in services:
            changes[time_s] = changes.get(time_s, 0.0) + sign * amount
    difference = low = high = 0.0
    for time_s in sorted(changes):
        difference += changes[time_s]
        low, high = min(low, difference), max(high, difference)
    return high - low
