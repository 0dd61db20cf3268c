"""The jobs that this process expands: their leases, cursors and open readers."""

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from core.clock import Clock
from jobs.expansion.cursors import ExpansionCursor
from jobs.expansion.emission import ItemReader
from jobs.expansion.job_loads import EXPANSION_DUE, OpenJob, open_jobs
from jobs.expansion.load_sums import JobLoad
from jobs.expansion.reader_slots import abandon_opening
from jobs.leasing.active_leases import ActiveLeases
from jobs.leasing.leases import Lease
from jobs.tables.jobs import jobs

_READERS_MAX: Final = 16  # each holds an object store connection and a block or two
_READER_IDLE_S_MAX: Final = 10.0  # a store may close a connection that is idle for minutes


@dataclass(slots=True, eq=False)
class LeasedJob:
    """A job in expansion. `reader` may be ahead of `cursor` only within a round."""

    lease: Lease
    job: OpenJob
    cursor: ExpansionCursor
    reader: ItemReader | None = None
    opening: Future[ItemReader] | None = None  # of the reader, in another thread
    used_s: float = 0.0

    def close_reader(self) -> None:
        """Close the reader; the next one starts at the cursor."""
        if self.opening is not None:
            abandon_opening(self.opening)
            self.opening = None
        if self.reader is not None:
            self.reader.close()
            self.reader = None


@dataclass(frozen=True, slots=True)
class LeasedJobs:
    """Claims jobs without a holder and releases them. Used by one thread."""

    engine: sa.Engine
    leases: ActiveLeases
    clock: Clock
    by_id: dict[UUID, LeasedJob] = field(default_factory=dict)

    @property
    def ids(self) -> frozenset[UUID]:
        """Jobs in expansion."""
        return frozenset(self.by_id)

    def acquire(self, ranked: Sequence[UUID], count_max: int) -> None:
        """Lease the `ranked` jobs, best first, as far as no other process has them.

        A leased job that is not ranked is released only if its slot is needed for a claimed one.
        """
        self._claim([job_id for job_id in ranked if job_id not in self.by_id])
        ranks = {job_id: rank for rank, job_id in enumerate(ranked)}
        by_rank = sorted(self.by_id, key=lambda job_id: ranks.get(job_id, len(ranks)))
        surplus = [self.by_id[job_id] for job_id in by_rank[count_max:]]
        for leased in surplus:
            self._remove(leased)
        self.leases.release(*(leased.lease for leased in surplus))

    def reload_changed(self, loads: Mapping[UUID, JobLoad]) -> list[UUID]:
        """Reload the leased jobs whose control version is not that of their load.

        Returns those that changed after `loads` was read: their loads do not apply to them. Raises
        one of `DATABASE_UNAVAILABLE`.
        """
        versions = {job_id: loads[job_id].version for job_id in self.by_id if job_id in loads}
        changed = [
            job_id
            for job_id, version in versions.items()
            if self.by_id[job_id].job.ref.version != version
        ]
        if not changed:
            return []
        with self.engine.begin() as connection:
            found = open_jobs(connection, changed)
        for job_id in changed:
            self.by_id[job_id].close_reader()
            if job := found.get(job_id):
                self.by_id[job_id].job = job
        return [
            job_id for job_id in changed if self.by_id[job_id].job.ref.version != versions[job_id]
        ]

    def release_finished(self, open_ids: Collection[UUID]) -> None:
        """Remove jobs that are expanded, closed or lost, and close idle readers."""
        for job_id, leased in list(self.by_id.items()):
            if not self.leases.is_leased(leased.lease):
                self._remove(leased)
            elif job_id not in open_ids or leased.cursor.item_index >= leased.job.total:
                self._remove(leased)
                self.leases.release(leased.lease)
        oldest_s = self.clock.monotonic_s() - _READER_IDLE_S_MAX
        reading = [leased for leased in self.by_id.values() if leased.reader is not None]
        reading.sort(key=lambda leased: leased.used_s, reverse=True)
        for number, leased in enumerate(reading):
            if number >= _READERS_MAX or leased.used_s < oldest_s:
                leased.close_reader()

    def close(self) -> None:
        """Close all readers. The owner of the leases releases them."""
        for leased in self.by_id.values():
            leased.close_reader()

    def suspend(self, leased: LeasedJob, pause_s: float | None = None) -> None:
        """Stop expanding a job and suspend its lease: others may claim the job once it expires.

        It expires in `pause_s`, or when it would without a heartbeat. Until then the job has no
        share of the window of its tenant and pool.
        """
        self._remove(leased)
        self.leases.suspend_lease(leased.lease, pause_s)

    def _claim(self, job_ids: Sequence[UUID]) -> None:
        if not job_ids:
            return
        where = sa.and_(EXPANSION_DUE, jobs.c.id.in_(job_ids))
        claimed = self.leases.claim(where, len(job_ids))
        if not claimed:
            return
        try:
            with self.engine.begin() as connection:
                found = open_jobs(connection, [lease.job_id for lease in claimed])
        except BaseException:  # whatever failed, no lease may outlive it
            for lease in claimed:  # heartbeats would keep a lease on jobs that nobody expands
                self.leases.let_expire(lease)
            raise
        closed: list[Lease] = []  # or paused, a moment ago
        for lease in claimed:
            if job := found.get(lease.job_id):
                self.by_id[lease.job_id] = LeasedJob(lease, job, job.cursor)
            else:
                closed.append(lease)
        self.leases.release(*closed)  # last: if it raises, all other jobs are registered

    def _remove(self, leased: LeasedJob) -> None:
        leased.close_reader()
        self.by_id.pop(leased.lease.job_id, None)
