"""The distribution of the time to the end of a job: quantiles, and the risk to miss a deadline.

The median is that of the fluid model (`core.estimates.pool_shares`), with the last items and the
new jobs that it leaves out. The time is lognormal on either side of its median: it is positive, its
error is relative, the errors of rate and of work multiply, and new jobs widen the later side alone.
Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import nlargest
from math import exp, hypot, log, sqrt
from statistics import NormalDist
from typing import Final, Generic

from core.estimates.new_jobs import AddedWork
from core.estimates.pool_shares import K, PoolShares, TenantWork
from core.estimates.rate_history import PoolRate
from core.estimates.tenant_queue import WorkAhead

SPREAD_MIN: Final = 0.05
"""Least relative error: what the model leaves out."""

ITEM_SPREAD: Final = 0.5
"""Assumed relative deviation of the service time of an item; replicas do not publish it."""

_NORMAL: Final = NormalDist()
_Z90: Final = _NORMAL.inv_cdf(0.9)
_ITEM_SIGMA: Final = sqrt(log(1 + ITEM_SPREAD**2))
_ARRIVING_MAX: Final = 64  # tenants whose new jobs count, the busiest
_ROUNDS: Final = 2  # new jobs arrive also while new jobs run
_S_MIN: Final = 0.001


@dataclass(frozen=True, slots=True)
class JobEnd:
    """When a job will end, in seconds from the time of the estimate."""

    p50_s: float
    p90_s: float
    sigma: float  # deviation of the logarithm of times below the median
    queue_s: float  # until its next item has its turn

    def miss_probability(self, left_s: float) -> float:
        """Return the probability that the job ends later than in `left_s`."""
        if left_s <= 0:
            return 1.0
        distance = log(left_s / self.p50_s)
        sigma = log(self.p90_s / self.p50_s) / _Z90 if distance > 0 else self.sigma
        return 1 - _NORMAL.cdf(distance / sigma)


class PoolEstimate(Generic[K]):
    """Estimates the ends of the jobs of one pool. Immutable."""

    def __init__(self, tenants: Mapping[K, TenantWork], rate: PoolRate) -> None:
        """`rate` must be above 0."""
        self._tenants, self._rate = tenants, rate
        self._shares = PoolShares(tenants, rate.work_per_s)
        arriving = [(key, one) for key, one in tenants.items() if one.new_jobs.per_s > 0]
        self._arriving = nlargest(_ARRIVING_MAX, arriving, key=lambda one: one[1].new_jobs.per_s)

    def job_end(self, tenant: K, ahead: WorkAhead, remaining: float) -> JobEnd:
        """Return the end of a job of `tenant`, of which `remaining` work is left, above 0."""
        queue_s = self._shares.seconds_until(tenant, ahead.to_turn)
        fluid_s = self._shares.seconds_until(tenant, ahead.to_end)
        work_per_s = self._rate.forecast(fluid_s)
        fluid_s *= self._rate.work_per_s / work_per_s
        added = AddedWork()
        at_s = fluid_s
        for _ in range(_ROUNDS if self._arriving else 0):
            added = self._added_work(tenant, ahead, remaining, at_s)
            at_s = fluid_s + added.quantile(0.0) / work_per_s
        p50_s = max(_S_MIN, self._with_last_items(at_s, remaining))
        sigma = self._sigma(at_s, ahead.to_end)
        by_new_s = (added.quantile(_Z90) - added.quantile(0.0)) / work_per_s
        p90_s = p50_s + hypot(p50_s * (exp(_Z90 * sigma) - 1), by_new_s)
        return JobEnd(p50_s, p90_s, sigma, queue_s)

    def _added_work(self, tenant: K, ahead: WorkAhead, remaining: float, at_s: float) -> AddedWork:
        """Return what new jobs receive before a job of `tenant` ends.

        A new job of the same tenant receives as much as this one has left. New jobs of another
        tenant receive what remains of that tenant's share after its present work.
        """
        received = ahead.to_end / self._tenants[tenant].weight
        added = AddedWork()
        for key, one in self._arriving:
            limit = one.weight * received - one.remaining
            if key == tenant:
                limit = remaining if ahead.shares_with_new else 0.0
            if limit > 0:
                added.add(one.new_jobs, within_s=at_s, limit=limit)
        return added

    def _with_last_items(self, fluid_s: float, remaining: float) -> float:
        """Return when the last item ends; in the fluid model items take no time.

        When it starts, what runs at once is all that is left. Of the items that start together with
        it, about a quarter of those that run, the longest ends the job.
        """
        service_s = self._rate.concurrency / self._rate.work_per_s
        together = max(1.0, min(remaining, self._rate.concurrency) / 4)
        longest = exp(_ITEM_SIGMA * (_NORMAL.inv_cdf(0.5 ** (1 / together)) - _ITEM_SIGMA / 2))
        return max(0.0, fluid_s - service_s) + service_s * longest

    def _sigma(self, at_s: float, work: float) -> float:
        """Return the relative error by the rate, by the items, and by what the model leaves out."""
        return sqrt(
            SPREAD_MIN**2 + self._rate.forecast_variance(at_s) + ITEM_SPREAD**2 / max(1.0, work)
        )
