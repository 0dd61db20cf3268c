"""When a batch will end and why its items wait, computed when a client asks.

One query each second returns the work of all pools, one the batches of a tenant, and one the
position of a batch, however many requests there are.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID

from api.runtime.database import Database
from api.runtime.shared_reads import SharedReads
from core.clock import Clock
from jobs.estimates.estimate_failures import EstimateFailures
from jobs.estimates.job_eta import (
    PoolSnapshot,
    eta_of,
    is_running,
    job_block,
    pool_snapshot,
    pool_view,
    waiting_of,
)
from jobs.estimates.pool_rates import PoolRates, PoolState
from jobs.estimates.pool_work import (
    JobPosition,
    PoolSums,
    RecentJobs,
    TenantJobs,
    find_pool_sums,
    find_position,
    find_recent_jobs,
    find_tenant_jobs,
)
from jobs.estimates.waiting_reasons import PoolView, WaitingReason

_RECENT_S: Final = 60.0
_JOBS_MAX: Final = 4096
_ESTIMATE_S: Final = 1.0
_ALL: Final = "all"


@dataclass(frozen=True, slots=True)
class ItemWaiting:
    """What decides why an item of a batch waits."""

    block: WaitingReason | None
    pool: PoolView


@dataclass(slots=True)
class JobEstimates:
    """Estimates for the routes of one process. Used on the event loop."""

    database: Database
    rates: PoolRates
    clock: Clock
    predict_start_s: Callable[[str], float | None] = lambda _: None
    """Returns the predicted time until a pool without replicas serves; None: it is not known."""
    _sums: SharedReads[str, PoolSums] = field(init=False)
    _recent: SharedReads[str, RecentJobs] = field(init=False)
    _tenants: SharedReads[UUID, TenantJobs] = field(init=False)
    _positions: SharedReads[tuple[UUID, UUID], JobPosition] = field(init=False)
    _pools: dict[str, tuple[float, PoolSnapshot]] = field(default_factory=dict)
    _failures: EstimateFailures = field(default_factory=EstimateFailures)

    def __post_init__(self) -> None:
        across, of_tenant = self.database.run_across_tenants, self.database.run_for_tenant
        clock = self.clock
        self._sums = SharedReads(lambda _: across(find_pool_sums), clock)
        self._recent = SharedReads(lambda _: across(find_recent_jobs), clock, age_s_max=_RECENT_S)
        self._tenants = SharedReads(
            lambda one: of_tenant(one, find_tenant_jobs, one, clock.wall_s()), clock
        )
        self._positions = SharedReads(
            lambda key: of_tenant(key[0], find_position, key[1]), clock, keys_max=_JOBS_MAX
        )

    async def fields(self, row: Any) -> dict[str, object]:
        """Return `eta` and `waiting` of a batch by its row: null if it has ended.

        Null also after any failure, which is logged: an estimate fails no request.
        """
        try:
            return await self._fields(row)
        except Exception as failure:  # noqa: BLE001  see above
            self._failures.log(failure)
            return {}

    async def pool_snapshot(self, pool: str) -> PoolSnapshot | None:
        """Return the work and the rate of a pool, None after any failure, as in `fields`."""
        try:
            return await self._pool(pool)
        except Exception as failure:  # noqa: BLE001  see `fields`
            self._failures.log(failure)
            return None

    async def item_waiting(self, row: Any) -> ItemWaiting | None:
        """Return why the items of a batch wait, None after any failure, as in `fields`."""
        try:
            pool = await self._pool(row.pool)
            return ItemWaiting(job_block(row, self.clock.wall_s()), pool_view(row, pool))
        except Exception as failure:  # noqa: BLE001  see `fields`
            self._failures.log(failure)
            return None

    async def _fields(self, row: Any) -> dict[str, object]:
        if not is_running(row):
            return {}
        pool = await self._pool(row.pool)
        jobs = await self._tenants.get(row.tenant_id)
        position = await self._positions.get((row.tenant_id, row.id))
        now_s = self.clock.wall_s()
        return {
            "eta": eta_of(row, position, jobs, pool, now_s),
            "waiting": waiting_of(row, position, pool, now_s),
        }

    async def _pool(self, pool: str | None) -> PoolSnapshot:
        """Return the state of a pool, at most about a second old. Raises any error of a read.

        None: the pool is not known before the file is validated.
        """
        if pool is None:
            return PoolSnapshot(PoolState(), None, {})
        built_s, snapshot = self._pools.get(pool, (None, None))
        now_s = self.clock.monotonic_s()
        if snapshot is not None and built_s is not None and now_s - built_s < _ESTIMATE_S:
            return snapshot
        sums, recent = await self._sums.get(_ALL), await self._recent.get(_ALL)
        snapshot = pool_snapshot(pool, self.rates.state(pool, now_s), sums, recent)
        if not snapshot.state.has_replica:
            snapshot = replace(snapshot, start_s=self.predict_start_s(pool))
        self._pools = {key: one for key, one in self._pools.items() if now_s - one[0] < _ESTIMATE_S}
        self._pools[pool] = now_s, snapshot
        return snapshot
