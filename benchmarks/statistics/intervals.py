"""Medians and how far to trust them: bounds are samples, and their coverage is counted."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import median

LEVEL = 0.95
"""The least coverage that is called an interval. Fewer than six samples cannot have it."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A median between two of the samples."""

    median: float
    low: float
    high: float
    count: int
    coverage: float | None
    """How often such bounds hold the true median; None where they are only the range."""


def interval(samples: Sequence[float]) -> Interval:
    """Return the median of `samples` between the closest two that cover it in `LEVEL` of cases.

    Without such two, the range. For ratios, pass one ratio a pair: what disturbed both sides stays
    out. Exact for samples that are independent of each other, whatever they are drawn from
    (Thompson, 1936).
    """
    assert samples, "nothing was measured"
    ordered, count = sorted(samples), len(samples)
    outside = max((k for k in range(count // 2) if coverage(count, k) >= LEVEL), default=None)
    return Interval(
        median=median(ordered),
        low=ordered[outside or 0],
        high=ordered[-1 - (outside or 0)],
        count=count,
        coverage=None if outside is None else coverage(count, outside),
    )


def coverage(count: int, outside: int) -> float:
    """Return how often the median lies between samples that leave `outside` of `count` each side.

    It lies below them all when no more than `outside` samples fall below it: a count of tosses.
    """
    return 1 - 2 * sum(comb(count, below) for below in range(outside + 1)) / (1 << count)


def ratios(ours: Sequence[float], peer: Sequence[float]) -> list[float]:
    """Return ours over the peer's, pair by pair. A peer of 0 is a broken measurement."""
    return [a / b for a, b in zip(ours, peer, strict=True)]
