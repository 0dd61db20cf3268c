"""P3, P7 and P8: what began, how often, and when, as an upstream that notes everything saw it."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Start(NamedTuple):
    """An execution of an item began."""

    at_s: float
    item: str


def repeated(starts: Iterable[Start]) -> int:
    """Return how many executions were not the first of their item."""
    counts = Counter(start.item for start in starts)
    return sum(counts.values()) - len(counts)


def began_after(starts: Iterable[Start], moment_s: float) -> list[Start]:
    """Return what began later than a moment at which nothing may begin any more."""
    return [start for start in starts if start.at_s > moment_s]


def latest_s(starts: Sequence[Start], since_s: float) -> float:
    """Return seconds from a moment to the last beginning; negative when all lie before it."""
    return max((start.at_s - since_s for start in starts), default=0.0)
