"""When a tenant has received an amount of work from a pool that tenants share by weight. Pure.

Work is a number of items, or of any other unit in which the rate of the pool is measured, too.

Source of the model: generalised processor sharing, Parekh and Gallager, "A Generalized Processor
Sharing Approach to Flow Control", IEEE/ACM Transactions on Networking 1 (3), 1993.
"""

from bisect import bisect_left
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, TypeVar

from core.estimates.new_jobs import NO_NEW_JOBS, NewJobs

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class TenantWork:
    """The work of one tenant on a pool."""

    remaining: float
    weight: float = 1.0
    new_jobs: NewJobs = NO_NEW_JOBS


class PoolShares(Generic[K]):
    """The tenants of a pool that have work, ready for questions. Immutable."""

    def __init__(self, tenants: Mapping[K, TenantWork], work_per_s: float) -> None:
        """`work_per_s` is the rate of the pool, above 0."""
        self._tenants, self._work_per_s = tenants, work_per_s
        ordered = sorted(tenants.values(), key=lambda one: one.remaining / one.weight)
        self._drained_at = [one.remaining / one.weight for one in ordered]
        self._work_below = list(accumulate((one.remaining for one in ordered), initial=0.0))
        self._weight_below = list(accumulate((one.weight for one in ordered), initial=0.0))

    def seconds_until(self, tenant: K, work: float) -> float:
        """Return when `tenant` has received `work`, in seconds from now, if nobody adds work.

        By the time that a tenant has received `v` for each unit of its weight, so has every tenant
        that has work left; the others have received all theirs. So the pool has done
        `sum(min(remaining, weight * v))` by then.
        """
        own = self._tenants[tenant]
        received = work / own.weight
        drained = bisect_left(self._drained_at, received)
        done = self._work_below[drained]
        done += received * (self._weight_below[-1] - self._weight_below[drained])
        done += work - min(own.remaining, work)  # the two may be of different snapshots
        return done / self._work_per_s
