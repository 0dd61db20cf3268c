"""The trace of `scaling_live`: online calls a second over time, and one bulk job. Pure."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

TRACE_S: Final = 600.0
"""Length of the whole trace, the quiet end included."""

_SEED: Final = 20_260_301


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Times are seconds after the start."""

    rates: tuple[tuple[float, float], ...]  # time and calls/s, linear between; 0 outside
    job_at_s: float
    job_items: int
    job_deadline_s: float
    length_s: float

    def rate_at(self, at_s: float) -> float:
        """Return the calls a second at a time."""
        for (begin_s, low), (end_s, high) in zip(self.rates, self.rates[1:], strict=False):
            if begin_s <= at_s < end_s:
                return low + (high - low) * (at_s - begin_s) / (end_s - begin_s)
        return 0.0

    def call_times(self) -> list[float]:
        """Return the times of the calls: a Poisson process with these rates, always the same."""
        return list(self._arrivals(random.Random(_SEED)))

    def _arrivals(self, rng: random.Random) -> Iterator[float]:
        """Yield times by thinning a process of the highest rate (Lewis and Shedler, 1979)."""
        highest, at_s = max(rate for _, rate in self.rates), 0.0
        while True:
            at_s += rng.expovariate(highest)
            if at_s >= self.rates[-1][0]:
                return
            if rng.random() * highest < self.rate_at(at_s):
                yield at_s


def scaled_trace(seconds: float) -> Trace:
    """Return the trace in another length: times and items shrink, rates stay.

    A pool of 8 × 200 ms serves 40 calls/s with one replica, and 25 items/s of bulk. The burst of 60
    calls a second needs two; the job comes at its end and needs two until its deadline.
    """
    scale = seconds / TRACE_S
    rates = ((10, 8), (60, 8), (120, 60), (160, 60), (170, 8), (240, 8))
    return Trace(
        rates=tuple((at_s * scale, float(rate)) for at_s, rate in rates),
        job_at_s=170 * scale,
        job_items=max(1, round(12_000 * scale)),
        job_deadline_s=420 * scale,
        length_s=seconds,
    )
