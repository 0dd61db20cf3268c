"""Medians and their confidence intervals, whose bounds are samples with exact coverage."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import median

LEVEL = 0.95
"""The least coverage of an interval; fewer than six samples cannot reach it."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A median and its bounds."""

    median: float
    low: float
    high: float
    count: int
    coverage: float | None
    """The probability that the bounds contain the true median; None for a plain range."""


def interval(samples: Sequence[float]) -> Interval:
    """Return the median of `samples` with the closest two samples that cover it at `LEVEL`.

    Without such samples, the bounds are the range. For ratios, pass one ratio a pair, so that a
    disturbance of both sides cancels out. Exact for independent samples of any distribution
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
    """Return the probability that the median lies between two order statistics.

    They leave `outside` of `count` samples on each side. The median lies below both when at most
    `outside` samples fall below it, which is a binomial probability.
    """
    return 1 - 2 * sum(comb(count, below) for below in range(outside + 1)) / (1 << count)


def ratios(ours: Sequence[float], peer: Sequence[float]) -> list[float]:
    """Return ours over the peer's, pair by pair; a peer of 0 is a broken measurement."""
    return [a / b for a, b in zip(ours, peer, strict=True)]
