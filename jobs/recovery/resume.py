"""Re-emits the void items of resumed jobs, as far as the window of their tenant allows.

Records from before a pause are void, so the items among them that did not run are emitted again.
Items that ran in the meantime have their row and are skipped.
"""

import logging
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from core.clock import Clock
from core.errors import MillraceError
from jobs import metrics
from jobs.expansion.emission import record_job_failure
from jobs.expansion.job_loads import HAS_VOID_ITEMS, OPEN
from jobs.expansion.load_cache import LoadCache, OpenLoads
from jobs.expansion.load_sums import TenantPool
from jobs.leasing.job_backoff import JobBackoff
from jobs.recovery.re_emit import ReEmitter
from jobs.recovery.retry_policy import RetryRules
from jobs.tables.jobs import job_cursors, jobs
from storage.postgres.engines import autocommit

_LOG = logging.getLogger(__name__)

RESUME_DUE: Final = sa.and_(
    OPEN,
    # Literal, so that Postgres recognises the partial index.
    sa.literal_column("jobs.void_below > 0 AND jobs.state = 'in_progress'"),
    sa.exists().where(job_cursors.c.job_id == jobs.c.id, HAS_VOID_ITEMS),
)
"""Resumed jobs with void records."""


BACKOFF: Final = RetryRules(backoff_s=1.0, backoff_s_max=60.0)
"""Delay of a job that cannot be emitted: each attempt reads its files from their start."""


@dataclass(slots=True)
class ResumeSweep:
    """Finds resumed jobs. Any number of processes may run it, each in one thread."""

    engine: sa.Engine
    emitter: ReEmitter
    clock: Clock
    loads: LoadCache
    window_items_max: int  # of a tenant and pool on the log
    backoff: JobBackoff = field(default_factory=lambda: JobBackoff(BACKOFF))

    def run_once(self) -> None:
        """Re-emit the due jobs that fit. Raises DeliveryError, and one of DATABASE_UNAVAILABLE.

        A job that could not be emitted backs off and delays no other job.
        """
        with autocommit(self.engine) as connection:
            due = connection.scalars(resume_query()).all()
        now_s = self.clock.monotonic_s()
        waiting = {job_id for job_id in due if self.backoff.is_waiting(job_id, now_s)}
        ready = [job_id for job_id in due if job_id not in waiting]
        if not ready:
            return
        with self.loads.current() as loads:
            chosen = jobs_within_window(ready, waiting, loads, self.window_items_max)
        for job_id in chosen:
            self._resume(job_id, now_s)

    def _resume(self, job_id: UUID, now_s: float) -> None:
        try:
            count = self.emitter.re_emit_job(job_id, sa.and_(RESUME_DUE, jobs.c.id == job_id))
        except MillraceError as failure:
            record_job_failure(job_id, failure, "a job cannot be emitted")
            self.backoff.next_s(job_id, now_s)
            return
        self.backoff.reset(job_id)
        if count:
            metrics.ITEMS_RESUMED.inc(count)
            _LOG.info("a job goes on", extra={"job": job_id.hex, "items": count})


@cache
def resume_query() -> sa.Select[UUID]:
    """Return the query of the jobs that are due, the oldest first."""
    query: sa.Select[UUID] = sa.select(jobs.c.id)
    return query.where(RESUME_DUE).order_by(jobs.c.created_at, jobs.c.id)


def jobs_within_window(
    due: Sequence[UUID], waiting: Collection[UUID], loads: OpenLoads, window_items_max: int
) -> list[UUID]:
    """Return the jobs of `due` whose missing items fit into their window now. Pure.

    The outstanding items of due jobs are void, as are those of jobs `waiting` for another try: they
    count once they are emitted again. A tenant without other items of the pool on the log may
    always continue, so no job waits for ever.
    """
    outstanding: Counter[TenantPool] = Counter()
    for job_id in {*due, *waiting}:
        if found := loads.find(job_id):
            outstanding[found.tenant_pool] -= found.outstanding
    by_tenant_pool = loads.sums.by_tenant_pool
    for key in outstanding.keys() & by_tenant_pool.keys():
        outstanding[key] += by_tenant_pool[key].outstanding
    selected = []
    for job_id in due:
        found = loads.find(job_id)
        if found is None:
            continue  # it was closed between the two queries, or its partition is unavailable
        if found.opens_s:
            continue  # it waits for its hours
        key, count = found.tenant_pool, found.outstanding
        if not outstanding[key] or outstanding[key] + count <= window_items_max:
            outstanding[key] += count
            selected.append(job_id)
    return selected
