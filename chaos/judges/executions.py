"""P3, P7 and P8: what began, how often, and when, as an upstream that notes everything saw it."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Start(NamedTuple):
    """An execution of an item began."""

    at_s: float
    item: str


def repeated_after(starts: Iterable[Start], moments_s: Sequence[float]) -> list[int]:
    """Return how many executions were not the first of their item, by the moment they came after.

    The moments are in order; each answers for what began until the next one.
    """
    seen: set[str] = set()
    counts = [0] * len(moments_s)
    for start in sorted(starts):
        last = bisect_right(moments_s, start.at_s) - 1
        if start.item in seen:
            counts[max(last, 0)] += 1  # before all: nobody's, but none is lost from the sum
        seen.add(start.item)
    return counts


def began_after(starts: Iterable[Start], moment_s: float) -> list[Start]:
    """Return what began later than a moment at which nothing may begin any more."""
    return [start for start in starts if start.at_s > moment_s]


def latest_s(starts: Sequence[Start], since_s: float) -> float:
    """Return seconds from a moment to the last beginning; negative when all lie before it."""
    return max((start.at_s - since_s for start in starts), default=0.0)
