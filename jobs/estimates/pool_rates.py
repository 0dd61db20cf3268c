"""The rates of the bulk pools, from the capacity that their replicas publish."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from core.estimates.rate_history import PoolRate, RateHistory
from jobs.expansion.pool_capacity import sum_by_pool
from jobs.expansion.pool_versions import PoolVersions, versions_by_pool
from jobs.expansion.windows import PoolCapacity
from topics.records.records import Capacity

SAMPLE_S: Final = 1.0
_WARM_S: Final = 5.0
"""Time from the first sample after which a pool without a record has no replica: replicas publish
at least every second, and a record is old after three."""

OLD_S: Final = 60.0
"""Age of the last sample from which nothing is known of any pool: the log is not read."""

_POOLS_MAX: Final = 10_000  # histories; the one that was started first is dropped
_JOB_CLASS: Final = "bulk"


@dataclass(frozen=True, slots=True)
class PoolState:
    """What is known of a pool."""

    has_replica: bool = True  # also while that is not known
    rate: PoolRate | None = None  # None: not known
    versions: PoolVersions = field(default_factory=dict)  # of all pools


class PoolRates:
    """Keeps the history of the rate of each pool. One thread adds, any thread may read."""

    def __init__(self) -> None:
        """No rate is known until the first `add_sample`."""
        self._histories: dict[str, RateHistory] = {}
        self._capacities: dict[str, PoolCapacity] = {}  # replaced as a whole
        self._versions: PoolVersions = {}  # the same
        self._first_s: float | None = None
        self._last_s = 0.0

    def is_due(self, now_s: float) -> bool:
        """Whether the last sample is a second old."""
        return self._first_s is None or now_s - self._last_s >= SAMPLE_S

    def add_sample(self, reports: Iterable[Capacity], *, now_s: float) -> None:
        """Add the newest records of the replicas that are not silent."""
        of_class = [one for one in reports if one.job_class == _JOB_CLASS]
        pools = sum_by_pool(of_class)
        for pool, capacity in pools.items():
            if pool not in self._histories and len(self._histories) >= _POOLS_MAX:
                del self._histories[next(iter(self._histories))]
            history = self._histories.setdefault(pool, RateHistory())
            history.add_sample(capacity.items_per_s, now_s=now_s)
        self._capacities, self._versions = pools, versions_by_pool(of_class)
        if self._first_s is None or now_s - self._last_s >= OLD_S:
            self._first_s = now_s  # the replicas of all pools have to publish again
        self._last_s = now_s

    def state(self, pool: str, now_s: float) -> PoolState:
        """Return what is known of a pool; nothing if the last sample is older than `OLD_S`."""
        capacity, history = self._capacities.get(pool), self._histories.get(pool)
        if self._first_s is None or now_s - self._last_s >= OLD_S:
            return PoolState()
        if capacity is None:
            return PoolState(has_replica=self._last_s - self._first_s < _WARM_S)
        rate = None if history is None else history.rate(float(max(1, capacity.concurrency)))
        return PoolState(True, rate, self._versions)
