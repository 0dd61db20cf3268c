"""The measured rate of a pool: its recent mean, how much it varies, and its forecast. Pure."""

from dataclasses import dataclass
from math import exp, sqrt
from typing import Final

MEMORY_S: Final = 60.0
"""Assumed time over which the rate of a pool stays similar (of an Ornstein-Uhlenbeck process)."""

_MEAN_S: Final = 20.0  # time constant of the mean
_LONG_S: Final = 600.0  # of the long mean, to which a forecast returns
_GAP_S_MAX: Final = 5.0  # a longer silence counts as this: nothing was measured meanwhile
_SPREAD_PRIOR: Final = 0.1
_SPREAD_MAX: Final = 1.0  # more says nothing: the rate has jumped, for example with new replicas


@dataclass(frozen=True, slots=True)
class PoolRate:
    """The rate of a pool: work in a second."""

    work_per_s: float  # above 0
    long_work_per_s: float = 0.0  # mean of ten minutes; 0: not known
    spread: float = 0.0  # relative standard deviation
    concurrency: float = 1.0  # work that runs at once

    def forecast(self, within_s: float) -> float:
        """Return the expected mean rate of the next `within_s`."""
        if self.long_work_per_s <= 0:
            return self.work_per_s
        times = within_s / MEMORY_S
        keep = 1.0 if times < 1e-6 else (1 - exp(-times)) / times
        return self.long_work_per_s + keep * (self.work_per_s - self.long_work_per_s)

    def forecast_variance(self, within_s: float) -> float:
        """Return the relative variance of the mean rate of the next `within_s`.

        It is that of the mean of an Ornstein-Uhlenbeck process, and never below a tenth of the
        variance of the rate: the long mean is not known exactly.
        """
        times = max(1e-3, within_s / MEMORY_S)
        share = 2 / times * (1 - (1 - exp(-times)) / times)
        return self.spread**2 * max(0.1, share)


@dataclass(slots=True)
class RateHistory:
    """Moving averages of a rate. Samples may come at any times."""

    _mean: float = 0.0  # 0: no sample yet
    _long_mean: float = 0.0
    _variance: float = 0.0
    _last_s: float = 0.0

    def add_sample(self, rate: float, *, now_s: float) -> None:
        """Add a measurement; one of 0 says nothing and is left out."""
        if rate <= 0:
            return
        if not self._mean:
            self._mean = self._long_mean = rate
            self._variance = (_SPREAD_PRIOR * rate) ** 2
            self._last_s = now_s
            return
        gap_s = min(_GAP_S_MAX, max(0.0, now_s - self._last_s))
        self._last_s = now_s
        self._mean += (1 - exp(-gap_s / _MEAN_S)) * (rate - self._mean)
        weight = 1 - exp(-gap_s / _LONG_S)
        self._long_mean += weight * (self._mean - self._long_mean)
        self._variance += weight * ((self._mean - self._long_mean) ** 2 - self._variance)

    def rate(self, concurrency: float) -> PoolRate | None:
        """Return the rate; None while there is no sample."""
        if not self._mean:
            return None
        spread = min(_SPREAD_MAX, sqrt(self._variance) / self._long_mean)
        return PoolRate(self._mean, self._long_mean, spread, concurrency)
