"""The estimate that a progress event carries: when the batch will end, and why its items wait."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar
from uuid import UUID

import sqlalchemy as sa

from core.clock import Clock
from core.estimates.job_end import PoolEstimate
from jobs.estimates.job_eta import PoolSnapshot, eta_of, is_running, waiting_of
from jobs.estimates.pool_rates import PoolRates
from jobs.estimates.pool_work import (
    PoolSums,
    RecentJobs,
    find_pool_sums,
    find_position,
    find_recent_jobs,
    find_tenant_jobs,
    tenant_works,
)
from jobs.store.batches import tenant_hours, with_counters
from jobs.tables.jobs import jobs
from topics.records.received_record import ReceivedRecord
from topics.records.records import Capacity
from topics.tail_readers.tail_reader_thread import decode_records

V = TypeVar("V")

_SUMS_S: Final = 1.0
_RECENT_S: Final = 60.0
_BUSY_SHARE_MAX: Final = 20  # a slow query is repeated after this many times its duration
_SILENCE_S_MAX: Final = 3.0  # a replica publishes every second


@dataclass(slots=True)
class CapacityReports:
    """Feeds `rates` with the records of `capacity`. Its method runs in one thread."""

    rates: PoolRates
    clock: Clock
    is_readable: Callable[[], bool] = lambda: True
    """Whether the log lets the topic be read; else silence of replicas proves nothing."""

    _newest: dict[tuple[str, str], tuple[Capacity, float]] = field(default_factory=dict)

    def receive(self, records: list[ReceivedRecord]) -> None:
        """Apply the records of one poll, perhaps none. Raises SchemaTooNewError."""
        now_s = self.clock.monotonic_s()
        for _, capacity in decode_records(Capacity, records):
            if capacity is not None:
                self._newest[capacity.replica_id, capacity.job_class] = capacity, now_s
        if self.rates.is_due(now_s) and self.is_readable():
            oldest_s = now_s - _SILENCE_S_MAX
            self._newest = {k: one for k, one in self._newest.items() if one[1] >= oldest_s}
            self.rates.add_sample([one for one, _ in self._newest.values()], now_s=now_s)


@dataclass(slots=True)
class _Cached(Generic[V]):
    """What a query returned lately."""

    find: Callable[[sa.Connection], V]
    age_s_max: float
    clock: Clock
    _found: V | None = None
    _due_s: float = float("-inf")

    def get(self, connection: sa.Connection) -> V:
        began_s = self.clock.monotonic_s()
        if self._found is None or began_s >= self._due_s:
            self._found = self.find(connection)
            now_s = self.clock.monotonic_s()
            self._due_s = now_s + max(self.age_s_max, _BUSY_SHARE_MAX * (now_s - began_s))
        return self._found


@dataclass(slots=True)
class ProgressEstimates:
    """Estimates of single batches. Used by one thread."""

    rates: PoolRates
    clock: Clock
    _sums: _Cached[PoolSums] = field(init=False)
    _recent: _Cached[RecentJobs] = field(init=False)

    def __post_init__(self) -> None:
        self._sums = _Cached(find_pool_sums, _SUMS_S, self.clock)
        self._recent = _Cached(find_recent_jobs, _RECENT_S, self.clock)

    def fields(self, connection: sa.Connection, job_id: UUID) -> Mapping[str, object]:
        """Return `eta` and `waiting` of a batch, nothing if it has ended.

        Raises one of DATABASE_UNAVAILABLE.
        """
        query = with_counters().add_columns(tenant_hours(jobs.c.tenant_id))
        row = connection.execute(query.where(jobs.c.id == job_id)).one_or_none()
        if row is None or not is_running(row) or row.pool is None:
            return {}
        pool = self._pool(connection, row.pool)
        tenant_jobs = find_tenant_jobs(connection, row.tenant_id)
        position = find_position(connection, job_id)
        now_s = self.clock.wall_s()
        return {
            "eta": eta_of(row, tenant_jobs, pool, now_s),
            "waiting": waiting_of(row, position, pool, now_s),
        }

    def _pool(self, connection: sa.Connection, pool: str) -> PoolSnapshot:
        sums, state = self._sums.get(connection), self.rates.state(pool, self.clock.monotonic_s())
        of_pool = sums.get(pool, {})
        outstanding = sum(one.outstanding for one in of_pool.values())
        if state.rate is None:
            return PoolSnapshot(state, None, of_pool, outstanding)
        works = tenant_works(pool, sums, self._recent.get(connection))
        return PoolSnapshot(state, PoolEstimate(works, state.rate), of_pool, outstanding)
