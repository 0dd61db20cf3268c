"""How much work jobs that do not exist yet will bring before another job ends. Pure.

New jobs of a tenant are a Poisson process with the recent rate, and their sizes are lognormal, as
the recent ones were. A sum of such jobs is a compound Poisson variable, which is mostly 0 where
less than one job is expected: its quantiles are those of a gamma distribution with the same mean
and variance.
"""

from dataclasses import dataclass
from math import erfc, exp, log, sqrt
from typing import Final

_SQRT2: Final = sqrt(2)
_SECOND_MOMENT: Final = 8 / 3
"""Mean square of an added size by the square of its mean: 2 of an exponential size, times 4/3 of a
limit that is uniform, because a job arrives at any moment."""


@dataclass(frozen=True, slots=True)
class NewJobs:
    """The jobs that a tenant creates on a pool, as it did recently."""

    per_s: float = 0.0
    log_mean: float = 0.0  # of their work
    log_deviation: float = 0.0
    observed_s: float = 3600.0  # how long they were counted

    def mean_work(self, limit: float) -> float:
        """Return the mean work of a new job, of which at most `limit` counts."""
        if limit <= 0:
            return 0.0
        log_limit, spread = log(limit), self.log_deviation
        if spread <= 0:
            return min(limit, exp(self.log_mean))
        z = (log_limit - self.log_mean) / spread
        below = exp(self.log_mean + spread**2 / 2) * _below(z - spread)
        return below + limit * _below(-z)


NO_NEW_JOBS: Final = NewJobs()


@dataclass(slots=True)
class AddedWork:
    """A sum of work of new jobs: its mean and variance."""

    mean: float = 0.0
    variance: float = 0.0

    def add(self, jobs: NewJobs, *, within_s: float, limit: float) -> None:
        """Add the new jobs of a tenant within a time, which add at most `limit` together.

        A job that arrives at a random moment can add half the limit, in the mean. The recent rate
        says nothing of a future that is longer than the past which was observed.
        """
        within_s = min(within_s, jobs.observed_s)
        of_each = jobs.mean_work(limit / 2)
        if of_each <= 0:
            return
        mean = limit * (1 - exp(-jobs.per_s * within_s * of_each / limit))
        self.mean += mean
        self.variance += _SECOND_MOMENT * of_each * mean

    def quantile(self, z: float) -> float:
        """Return the quantile that has `z` in the standard normal distribution.

        Source: Wilson and Hilferty, "The Distribution of Chi-Square", PNAS 17, 1931.
        """
        if self.mean <= 0:
            return 0.0
        shape = self.mean**2 / self.variance
        root = 1 - 1 / (9 * shape) + z / (3 * sqrt(shape))
        return self.mean * max(0.0, root) ** 3


def _below(z: float) -> float:
    """Return the cumulative distribution of the standard normal variable."""
    return 0.5 * erfc(-z / _SQRT2)
