"""The loads of all open batches in memory, kept equal to their rows by reading what changed.

Invariant: after a refresh the loads are those of a new snapshot of Postgres. The rows of jobs, of
cursors and of counters carry the transaction that last wrote them (`changed_xid`), so a refresh
reads exactly those rows whose transaction the previous snapshot did not see. No clock takes part,
and transactions may commit in any order. Only the time to the deadline is that of the last read,
and whether a job waits for its time or hours follows the database's clock.
"""

import logging
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from sys import intern
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from core.states import JobKind
from jobs import metrics
from jobs.expansion.backlog_sums import BacklogSums
from jobs.expansion.job_loads import OPEN, RUNNING, LeaseState, find_leases, loads_query
from jobs.expansion.job_openings import JobOpenings, jobs_of
from jobs.expansion.load_sums import JobLoad, LoadSums
from jobs.expansion.pool_versions import LatestPoolVersions, PoolVersions, has_versions
from jobs.expansion.result_partitions import ResultPartitions, results_partition
from jobs.tables.jobs import job_counters, job_cursors, jobs

_IDS: Final = sa.ARRAY(sa.Uuid)
_SINCE: Final = "CAST(:snapshot AS pg_snapshot)"
_LOG: Final = logging.getLogger(__name__)

RECONCILE_INTERVAL_S: Final = 60.0
"""Time between two comparisons with all rows, which take a second or two with 100,000 jobs."""

# Another server, such as a standby that was promoted, may lack transactions of a snapshot.
_SNAPSHOT: Final = sa.select(
    sa.cast(sa.func.pg_postmaster_start_time(), sa.Text).label("server"),
    sa.cast(sa.func.pg_current_snapshot(), sa.Text).label("snapshot"),
    sa.cast(sa.extract("epoch", sa.func.now()), sa.Double).label("now_s"),
).subquery("taken")

# Rows that were dumped from another cluster may have numbers that are still to come in this one.
_NEXT_XID: Final[sa.ColumnElement[int]] = sa.literal_column(
    "pg_snapshot_xmax(pg_current_snapshot())::text::bigint", sa.BigInteger
)


def _with_snapshot(where: sa.ColumnElement[bool]) -> sa.Select[Any]:
    states = OPEN.label("is_open"), RUNNING.label("is_running")
    loads = loads_query(JobKind.BATCH, *states).where(where).subquery("loads")
    return sa.select(_SNAPSHOT, loads).select_from(_SNAPSHOT.outerjoin(loads, sa.true()))


def _changed(table: sa.Table, job_id: sa.Column[Any]) -> sa.Select[Any]:
    """Return the query of the jobs whose row in `table` changed."""
    is_seen = f"pg_visible_in_snapshot({table.name}.changed_xid::text::xid8, {_SINCE})"
    return sa.select(job_id).where(
        table.c.changed_xid >= sa.bindparam("oldest", type_=sa.BigInteger),
        table.c.changed_xid < _NEXT_XID,
        sa.text(f"NOT {is_seen}").bindparams(sa.bindparam("snapshot", type_=sa.Text)),
    )


ALL_OPEN: Final = _with_snapshot(RUNNING)
"""The query of all open batches, and of those that are paused or in quarantine. Its first columns
are the server, the snapshot, the time, and whether the job is open and in progress."""

CHANGES: Final = _with_snapshot(
    jobs.c.id.in_(
        sa.union(
            sa.select(sa.func.unnest(sa.cast(sa.bindparam("job_ids", type_=_IDS), _IDS))),
            _changed(jobs, jobs.c.id),
            _changed(job_cursors, job_cursors.c.job_id),
            _changed(job_counters, job_counters.c.job_id),
        )
    )
)
"""The query of what `changes_since` names. Its first columns are the server, the new snapshot, the
time, and whether the job is open and in progress. It has one row, without a job, if nothing
changed."""


@dataclass(slots=True)
class OpenLoads:
    """The loads of all open batches, and the leases on jobs, as of one snapshot."""

    server: str = ""
    snapshot: str = ""
    by_id: dict[UUID, JobLoad] = field(default_factory=dict)
    sums: LoadSums = field(default_factory=LoadSums)
    """Without jobs of unavailable partitions, and those whose version no replica has."""

    unserved: LoadSums = field(default_factory=LoadSums)
    """Of the jobs whose version no replica has: their outstanding items occupy the batchers."""

    outstanding: int = 0  # items of all jobs
    outstanding_by_pool: dict[str, dict[UUID, JobLoad]] = field(default_factory=dict)
    """The loads with outstanding items; windows bound their number."""

    copies_left: set[UUID] = field(default_factory=set)
    """The jobs that have only copies left."""

    blocked: dict[UUID, JobLoad] = field(default_factory=dict)
    """The loads of the batches that are paused or in quarantine; nothing else counts them."""

    backlog: BacklogSums = field(default_factory=BacklogSums)
    """Of the jobs in `by_id` and in `blocked`."""

    leases: dict[UUID, LeaseState] = field(default_factory=dict)
    """Leased jobs of every process."""

    results: ResultPartitions = field(default_factory=ResultPartitions)
    versions: LatestPoolVersions = field(default_factory=LatestPoolVersions)
    openings: JobOpenings = field(default_factory=JobOpenings)
    _unavailable: frozenset[int] = frozenset()
    _by_pool: PoolVersions = field(default_factory=dict)

    def find(self, job_id: UUID) -> JobLoad | None:
        """Return the load of an open job; None also if it is not in `sums`."""
        return self._counted(self.by_id.get(job_id))

    def counted(self) -> Iterable[JobLoad]:
        """Return the loads of the jobs in `sums`."""
        if not (self._unavailable or self._by_pool):
            return self.by_id.values()
        return [load for load in self.by_id.values() if self._counted(load) is not None]

    def leased(self, held: Collection[UUID]) -> list[JobLoad]:
        """Return the loads of all jobs in expansion, oldest first; this process holds `held`."""
        ids = {job_id for job_id, lease in self.leases.items() if not lease.is_suspended}
        found = [load for job_id in ids.union(held) if (load := self.find(job_id))]
        return sorted(found, key=lambda load: load.age)

    def replace(self, job_id: UUID, load: JobLoad | None) -> None:
        """Replace the load of a job; None: the job is not open."""
        before = self.by_id.pop(job_id, None)
        if load is not None:
            load = self.openings.with_opening(load)
            self.by_id[job_id] = load
        self.outstanding += _outstanding(load) - _outstanding(before)
        self.backlog.replace(before, load)
        self._replace_outstanding(before, load)
        if load is not None and load.has_only_copies_left:
            self.copies_left.add(job_id)
        else:
            self.copies_left.discard(job_id)
        self.sums.replace(self._counted(before), self._counted(load))
        if self._by_pool:
            self.unserved.replace(self._unserved(before), self._unserved(load))

    def replace_blocked(self, job_id: UUID, load: JobLoad | None) -> None:
        """Replace the load of a paused job, or one in quarantine; None: the job is neither."""
        before = self.blocked.pop(job_id, None)
        if load is not None:
            self.blocked[job_id] = load
        self.backlog.replace(before, load, is_blocked=True)

    def epochs(self) -> dict[str, int]:
        """Return the highest epoch of the leases on open jobs, by pool."""
        highest: dict[str, int] = {}
        for job_id, lease in self.leases.items():
            if load := self.by_id.get(job_id) or self.blocked.get(job_id):
                highest[load.pool] = max(lease.epoch, highest.get(load.pool, 0))
        return highest

    def _replace_outstanding(self, before: JobLoad | None, after: JobLoad | None) -> None:
        if before is not None and before.outstanding:
            del self.outstanding_by_pool[before.pool][before.job_id]
            if not self.outstanding_by_pool[before.pool]:
                del self.outstanding_by_pool[before.pool]
        if after is not None and after.outstanding:
            self.outstanding_by_pool.setdefault(after.pool, {})[after.job_id] = after

    def differs_from(self, other: "OpenLoads") -> bool:
        """Whether sums differ although they leave out the same jobs."""
        leaves_out_others = (self._unavailable, self._by_pool) != (
            other._unavailable,  # noqa: SLF001  of the same class
            other._by_pool,  # noqa: SLF001
        )
        sums, others = (self.sums, self.unserved), (other.sums, other.unserved)
        if self.backlog.differs_from(other.backlog):
            return True
        return not leaves_out_others and any(
            mine.by_pool != of_other.by_pool for mine, of_other in zip(sums, others, strict=True)
        )

    def apply(self, connection: sa.Connection, *, hours_at_once: bool = False) -> bool:
        """Read what changed since the snapshot; return False if the server is another one.

        Tenants' hours are those of the snapshot with `hours_at_once`, else up to 2 s old.
        """
        leases = find_leases(connection)
        changed_leases = {job_id for job_id, _ in leases.items() ^ self.leases.items()}
        rows = connection.execute(CHANGES, changes_since(self.snapshot, changed_leases)).all()
        if self.server != rows[0].server:
            return False
        self._apply_rows(rows)
        self._apply_openings(connection, at_once=hours_at_once)
        self.leases = leases
        self._apply_partitions()
        self._apply_versions()
        return True

    def load_all(self, connection: sa.Connection) -> None:
        """Read the rows of all open jobs, into empty loads."""
        self._apply_partitions()
        self._apply_versions()
        self._apply_rows(connection.execute(ALL_OPEN).all())
        self._apply_openings(connection, at_once=True)
        self.leases = find_leases(connection)

    def _apply_openings(self, connection: sa.Connection, *, at_once: bool) -> None:
        """Apply changed hours of tenants, and open and close jobs whose time has come."""
        changed = self.openings.refresh(connection, at_once=at_once)
        due = self.openings.pop_due()
        if changed:
            due += jobs_of(changed, self.by_id.values())
        for job_id in due:
            if load := self.by_id.get(job_id):
                self.replace(job_id, load)

    def _apply_rows(self, rows: Iterable[Sequence[Any]]) -> None:
        for server, snapshot, now_s, is_open, is_running, job_id, *rest in rows:
            self.server, self.snapshot, self.openings.now_s = server, snapshot, now_s
            if job_id is None:
                return  # the only row: nothing changed
            # A job that is not in progress may have no versions.
            load = _load(job_id, rest) if is_running else None
            self.replace(job_id, load if is_open else None)
            self.replace_blocked(job_id, None if is_open else load)

    def _apply_partitions(self) -> None:
        if self._unavailable != self.results.unavailable:
            self._unavailable = self.results.unavailable
            counted = (self._counted(load) for load in self.by_id.values())
            self.sums = LoadSums.of(load for load in counted if load is not None)

    def _apply_versions(self) -> None:
        """Add the jobs whose version is served now, and remove those whose version is not."""
        before, after = self._by_pool, self.versions.by_pool
        if before is after:
            return
        changed = {
            pool for pool in before.keys() | after.keys() if before.get(pool) != after.get(pool)
        }
        loads = [load for load in self.by_id.values() if load.pool in changed]
        were = [(self._counted(load), self._unserved(load)) for load in loads]
        self._by_pool = after
        for load, (was_counted, was_unserved) in zip(loads, were, strict=True):
            is_counted, is_unserved = self._counted(load), self._unserved(load)
            if is_counted is not was_counted:
                self.sums.replace(was_counted, is_counted)
            if is_unserved is not was_unserved:
                self.unserved.replace(was_unserved, is_unserved)

    def _counted(self, load: JobLoad | None) -> JobLoad | None:
        """Return the load if its job takes part in windows, else None."""
        if load is None or not (self._unavailable or self._by_pool):
            return load
        if results_partition(load.job_id) in self._unavailable:
            return None
        return load if self._is_served(load) else None

    def _unserved(self, load: JobLoad | None) -> JobLoad | None:
        return None if load is None or self._is_served(load) else load

    def _is_served(self, load: JobLoad) -> bool:
        return has_versions(self._by_pool, load.pool, load.required_versions)


@dataclass(slots=True)
class LoadCache:
    """The loads that the threads of one process share."""

    engine: sa.Engine
    results: ResultPartitions
    versions: LatestPoolVersions = field(default_factory=LatestPoolVersions)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _loads: OpenLoads | None = None

    @contextmanager
    def current(self) -> Iterator[OpenLoads]:
        """Refresh the loads, and keep them unchanged for the block.

        The first refresh, and the one after a failure, reads all open jobs. Raises one of
        DATABASE_UNAVAILABLE.
        """
        with self._lock:
            loads, self._loads = self._loads, None  # after a failure all are read again
            with self.engine.begin() as connection:
                is_current = loads is not None and loads.apply(connection)
            if loads is None or not is_current:
                loads = self._load_all()
            self._loads = loads
            yield loads

    def reconcile(self) -> None:
        """Read all open jobs again, and replace what is in memory. Raises DATABASE_UNAVAILABLE.

        Other threads go on meanwhile. A difference is a defect, or a row that was written without
        triggers; it is counted and logged.
        """
        if self._loads is None:
            return  # `current` reads all jobs
        fresh = self._load_all()
        with self._lock:
            known, self._loads = self._loads, None
            one_snapshot = self.engine.execution_options(isolation_level="REPEATABLE READ")
            with one_snapshot.begin() as connection:
                if not fresh.apply(connection, hours_at_once=True):
                    return
                is_known = known is not None and known.apply(connection, hours_at_once=True)
            if is_known and known is not None and known.differs_from(fresh):
                metrics.LOAD_MISMATCHES.inc()
                _LOG.error("loads in memory differed from their rows")
            self._loads = fresh

    def _load_all(self) -> OpenLoads:
        loads = OpenLoads(results=self.results, versions=self.versions)
        with self.engine.begin() as connection:
            loads.load_all(connection)
        return loads


def changes_since(snapshot: str, job_ids: Collection[UUID] = ()) -> dict[str, Any]:
    """Return the parameters of `CHANGES` for the jobs changed since `snapshot`, and `job_ids`."""
    # Every transaction older than the first number of a snapshot had ended.
    return {
        "snapshot": snapshot,
        "oldest": int(snapshot.partition(":")[0]),
        "job_ids": list(job_ids),
    }


def _load(job_id: UUID, columns: Sequence[Any]) -> JobLoad:
    """Return the load in the columns of a row after the id. Many jobs have the same texts."""
    *rest, versions, endpoint, prompt_tokens, output_tokens = columns
    fields = (job_id, *rest, intern(versions), intern(endpoint), prompt_tokens, output_tokens)
    return JobLoad(*fields)


def _outstanding(load: JobLoad | None) -> int:
    return 0 if load is None else load.outstanding
