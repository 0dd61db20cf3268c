"""Medians and how far to trust them: percentile bootstrap, seeded, so a report can be repeated."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

RESAMPLES = 5_000
SEED = 20_260_101
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A median and the bounds that hold 95 % of the medians of resampled data."""

    median: float
    low: float
    high: float


def interval(samples: Sequence[float], *, seed: int = SEED) -> Interval:
    """Return the median of `samples` with its bootstrap interval (Efron, 1979).

    For ratios, pass one ratio a pair: resampling whole pairs keeps what disturbed both sides out.
    """
    assert samples, "nothing was measured"
    rng = random.Random(seed)
    count = len(samples)
    medians = sorted(median(rng.choices(samples, k=count)) for _ in range(RESAMPLES))
    tail = (1 - LEVEL) / 2
    return Interval(median(samples), _quantile(medians, tail), _quantile(medians, 1 - tail))


def ratios(ours: Sequence[float], peer: Sequence[float]) -> list[float]:
    """Return ours over the peer's, pair by pair. A peer of 0 is a broken measurement."""
    return [a / b for a, b in zip(ours, peer, strict=True)]


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
