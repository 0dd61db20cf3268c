"""The jobs that this process expands: which it holds, and how far each has come."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from core.clock import Clock
from jobs.expansion.cursors import ExpansionCursor
from jobs.expansion.emission import ItemReader
from jobs.expansion.job_loads import EXPANSION_DUE, OpenJob, open_jobs
from jobs.expansion.windows import JobLoad
from jobs.leasing.active_leases import ActiveLeases
from jobs.leasing.leases import Lease
from jobs.tables.jobs import jobs

_READERS_MAX: Final = 16  # each holds a connection of an object store and a block or two
_READER_IDLE_S_MAX: Final = 10.0  # a store may cut a reader that pauses for minutes


@dataclass(slots=True, eq=False)
class LeasedJob:
    """A job in expansion. `reader` may be ahead of `cursor` only within a round."""

    lease: Lease
    job: OpenJob
    cursor: ExpansionCursor
    reader: ItemReader | None = None
    used_s: float = 0.0

    def close_reader(self) -> None:
        """Give its file back; the next one begins at the cursor."""
        if self.reader is not None:
            self.reader.close()
            self.reader = None


class LeasedJobs:
    """Takes jobs that no other process has, and lets go of them. Used by one thread."""

    def __init__(self, engine: sa.Engine, leases: ActiveLeases, clock: Clock) -> None:
        """Hold nothing yet."""
        self._engine = engine
        self._leases = leases
        self._clock = clock
        self.by_id: dict[UUID, LeasedJob] = {}

    @property
    def ids(self) -> frozenset[UUID]:
        """Jobs in expansion."""
        return frozenset(self.by_id)

    def hold(self, wanted: Sequence[UUID], count_max: int) -> None:
        """Hold the jobs `wanted`, most wanted first, as far as no other process has them.

        A job that is not wanted leaves only when its slot is needed for one that was claimed.
        """
        self._claim([job_id for job_id in wanted if job_id not in self.by_id])
        places = {job_id: place for place, job_id in enumerate(wanted)}
        by_want = sorted(self.by_id, key=lambda job_id: places.get(job_id, len(places)))
        surplus = [self.by_id[job_id] for job_id in by_want[count_max:]]
        for held in surplus:
            self._drop(held)
        self._leases.release(*(held.lease for held in surplus))

    def refresh(self, loads: Sequence[JobLoad]) -> None:
        """Read anew what owners have changed of the jobs that are held; `loads` is of this round.

        Raises one of `DATABASE_AWAY`.
        """
        versions = {load.job_id: load.version for load in loads}
        changed = [
            job_id
            for job_id, held in self.by_id.items()
            if versions.get(job_id, held.job.ref.version) != held.job.ref.version
        ]
        if not changed:
            return
        with self._engine.begin() as connection:
            found = open_jobs(connection, changed)
        for job_id in changed:
            self.by_id[job_id].close_reader()
            if job := found.get(job_id):
                self.by_id[job_id].job = job

    def tidy(self, open_ids: Collection[UUID]) -> None:
        """Let go of jobs that are expanded, closed or lost, and of readers that rest."""
        for job_id, held in list(self.by_id.items()):
            if not self._leases.holds(held.lease):
                self._drop(held)
            elif job_id not in open_ids or held.cursor.item_index >= held.job.total:
                self._drop(held)
                self._leases.release(held.lease)
        oldest_s = self._clock.monotonic_s() - _READER_IDLE_S_MAX
        reading = [held for held in self.by_id.values() if held.reader is not None]
        reading.sort(key=lambda held: held.used_s, reverse=True)
        for place, held in enumerate(reading):
            if place >= _READERS_MAX or held.used_s < oldest_s:
                held.close_reader()

    def close(self) -> None:
        """Close what is open; the leases are given back by their owner."""
        for held in self.by_id.values():
            held.close_reader()

    def suspend(self, held: LeasedJob) -> None:
        """Let go of a job but not of its lease: others may try it once that has run out.

        Until then it has no part in the window of its tenant and model.
        """
        self._drop(held)
        self._leases.suspend_lease(held.lease)

    def _claim(self, job_ids: Sequence[UUID]) -> None:
        if not job_ids:
            return
        where = sa.and_(EXPANSION_DUE, jobs.c.id.in_(job_ids))
        claimed = self._leases.claim(where, len(job_ids))
        if not claimed:
            return
        try:
            with self._engine.begin() as connection:
                found = open_jobs(connection, [lease.job_id for lease in claimed])
        except BaseException:
            for lease in claimed:  # or heartbeats would keep from everyone what nobody expands
                self._leases.let_expire(lease)
            raise
        closed: list[Lease] = []  # or paused, a moment ago
        for lease in claimed:
            if job := found.get(lease.job_id):
                self.by_id[lease.job_id] = LeasedJob(lease, job, job.cursor)
            else:
                closed.append(lease)
        self._leases.release(*closed)  # at the end: should it raise, all others are known

    def _drop(self, held: LeasedJob) -> None:
        held.close_reader()
        self.by_id.pop(held.lease.job_id, None)
