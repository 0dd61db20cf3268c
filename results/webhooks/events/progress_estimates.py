"""The estimate that a progress event carries: when the batch will end, and why its items wait."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeAlias, TypeVar
from uuid import UUID

import sqlalchemy as sa

from core.clock import Clock
from jobs.estimates.estimate_failures import EstimateFailures
from jobs.estimates.job_eta import PoolSnapshot, eta_of, is_running, pool_snapshot, waiting_of
from jobs.estimates.pool_rates import PoolRates
from jobs.estimates.pool_work import (
    PoolSums,
    RecentJobs,
    TenantJobs,
    find_pool_sums,
    find_position,
    find_recent_jobs,
    find_tenant_jobs,
)
from jobs.store.batches import tenant_hours, with_counters
from jobs.tables.jobs import jobs
from topics.records.received_record import ReceivedRecord
from topics.records.records import Capacity
from topics.tail_readers.tail_reader_thread import decode_records

K = TypeVar("K")
V = TypeVar("V")

EstimateOf: TypeAlias = Callable[[sa.Connection, UUID], Mapping[str, object]]
"""Returns further fields of the progress message of a job."""

SLICE_S: Final = 0.5
"""Time of the estimates of one transaction."""

_TIME_LIMIT: Final = sa.text("SELECT set_config('statement_timeout', :limit, true)")

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
class _Cached(Generic[K, V]):
    """What a query returned lately, by key."""

    find: Callable[[sa.Connection, K], V]
    age_s_max: float
    clock: Clock
    _found: dict[K, tuple[float, V]] = field(default_factory=dict)

    def get(self, connection: sa.Connection, key: K) -> V:
        began_s = self.clock.monotonic_s()
        due_s, found = self._found.get(key, (0.0, None))
        if found is not None and began_s < due_s:
            return found
        self._found = {k: one for k, one in self._found.items() if began_s < one[0]}
        found = self.find(connection, key)
        now_s = self.clock.monotonic_s()
        due_s = now_s + max(self.age_s_max, _BUSY_SHARE_MAX * (now_s - began_s))
        self._found[key] = due_s, found
        return found


@dataclass(slots=True)
class ProgressEstimates:
    """Estimates of single batches. Used by one thread."""

    rates: PoolRates
    clock: Clock
    _sums: _Cached[None, PoolSums] = field(init=False)
    _recent: _Cached[None, RecentJobs] = field(init=False)
    _tenants: _Cached[UUID, TenantJobs] = field(init=False)
    _failures: EstimateFailures = field(default_factory=EstimateFailures)

    def __post_init__(self) -> None:
        clock = self.clock
        self._sums = _Cached(lambda one, _: find_pool_sums(one), _SUMS_S, clock)
        self._recent = _Cached(lambda one, _: find_recent_jobs(one), _RECENT_S, clock)
        self._tenants = _Cached(
            lambda one, tenant_id: find_tenant_jobs(one, tenant_id, clock.wall_s()), _SUMS_S, clock
        )

    def start_slice(self) -> EstimateOf:
        """Return the function that estimates the batches of one transaction.

        Estimates that begin `SLICE_S` after this call are left out, with `eta` and `waiting`, so
        that the transaction ends: it locks watches, and its snapshot delays vacuum.
        """
        end_s = self.clock.monotonic_s() + SLICE_S
        return lambda connection, job_id: self._fields_until(end_s, connection, job_id)

    def _fields_until(
        self, end_s: float, connection: sa.Connection, job_id: UUID
    ) -> Mapping[str, object]:
        """Return `fields`, nothing after any failure; each statement ends at about `end_s`.

        The savepoint is always rolled back: nothing is written, and the transaction goes on after a
        failed statement and without the time limit. Raises only if the connection is lost.
        """
        left_s = end_s - self.clock.monotonic_s()
        if left_s <= 0:
            return {}
        savepoint = connection.begin_nested()
        try:
            connection.execute(_TIME_LIMIT, {"limit": f"{max(1, round(1000 * left_s))}ms"})
            return self.fields(connection, job_id)
        except Exception as failure:
            if connection.invalidated:
                raise
            self._failures.log(failure)
            return {}
        finally:
            if not connection.invalidated:
                savepoint.rollback()

    def fields(self, connection: sa.Connection, job_id: UUID) -> Mapping[str, object]:
        """Return `eta` and `waiting` of a batch, nothing if it has ended.

        Raises one of DATABASE_UNAVAILABLE.
        """
        query = with_counters().add_columns(tenant_hours(jobs.c.tenant_id))
        row = connection.execute(query.where(jobs.c.id == job_id)).one_or_none()
        if row is None or not is_running(row) or row.pool is None:
            return {}
        pool = self._pool(connection, row.pool)
        tenant_jobs = self._tenants.get(connection, row.tenant_id)
        position = find_position(connection, job_id)
        now_s = self.clock.wall_s()
        return {
            "eta": eta_of(row, position, tenant_jobs, pool, now_s),
            "waiting": waiting_of(row, position, pool, now_s),
        }

    def _pool(self, connection: sa.Connection, pool: str) -> PoolSnapshot:
        state = self.rates.state(pool, self.clock.monotonic_s())
        sums = self._sums.get(connection, None)
        recent = {} if state.rate is None else self._recent.get(connection, None)
        return pool_snapshot(pool, state, sums, recent)
