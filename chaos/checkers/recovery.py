"""A12: time until the rate recovers, from samples of a counter."""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

RATE_MIN: Final = 20.0
"""Items a second; at a lower rate a standstill cannot be told from noise."""


class Sample(NamedTuple):
    """A counter's value at a moment."""

    at_s: float
    total: int


def rate_before(samples: Sequence[Sample], until_s: float, *, over_s: float) -> float:
    """Return the rate over the `over_s` before `until_s`."""
    return rate(samples, until_s - over_s, until_s)


def steady_rate(samples: Sequence[Sample], until_s: float, *, over_s: float) -> float | None:
    """Return the rate over the `over_s` before `until_s`, or None when it stalled there.

    It stalled when one half of that time has less than `RATE_MIN`.
    """
    middle_s = until_s - over_s / 2
    halves = rate(samples, until_s - over_s, middle_s), rate(samples, middle_s, until_s)
    return rate_before(samples, until_s, over_s=over_s) if min(halves) >= RATE_MIN else None


def rate(samples: Sequence[Sample], since_s: float, until_s: float) -> float:
    """Return the rate between two moments; 0 with fewer than two samples."""
    inside = [sample for sample in samples if since_s <= sample.at_s <= until_s]
    if len(inside) < 2 or inside[-1].at_s == inside[0].at_s:
        return 0.0
    return (inside[-1].total - inside[0].total) / (inside[-1].at_s - inside[0].at_s)


def seconds_to_recovery(
    samples: Sequence[Sample], since_s: float, goal: float, *, over_s: float, settled_s: float = 0.0
) -> float:
    """Return seconds from a moment until the rate over `over_s` is back at `goal`.

    The mean rate of the `settled_s` after that window must reach `goal` too, so that a burst of
    piled-up work is no recovery. Work in flight still completes after a kill, so the search starts
    at the first window below `goal`: the result is 0 when there is none, and infinite when the rate
    never recovers.
    """
    total_s = over_s + settled_s
    windows = [
        (at_s, rate(samples, at_s, at_s + over_s))
        for at_s, _ in samples
        if at_s >= since_s and at_s + over_s <= samples[-1].at_s
    ]
    dip_s = next((at_s for at_s, found in windows if found < goal), None)
    if dip_s is None:
        return 0.0
    for at_s, found in windows:
        if at_s <= dip_s or found < goal or at_s + total_s > samples[-1].at_s:
            continue
        if not settled_s or rate(samples, at_s + over_s, at_s + total_s) >= goal:
            return at_s - since_s
    return math.inf
