"""Emits again what a pause made void, once the job goes on: as far as its tenant's window allows.

A record on the log from before a pause is void, so what of it did not run must come again. Nothing
else knows the difference: items that ran meanwhile have their row and are left out.
"""

import logging
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from core.clock import Clock
from core.errors import MillraceError
from jobs import metrics
from jobs.expansion.job_loads import OPEN, job_loads
from jobs.expansion.windows import JobLoad, TenantModel
from jobs.recovery.re_emit import ReEmitter, record_job_failure
from jobs.recovery.retry_policy import RetryRules, backoff_s
from jobs.tables.jobs import jobs
from jobs.tables.progress import job_cursors

_LOG = logging.getLogger(__name__)

RESUME_DUE: Final = sa.and_(
    OPEN,
    # Literal, so that Postgres sees that the partial index fits.
    sa.literal_column("jobs.void_below > 0 AND jobs.state = 'in_progress'"),
    sa.exists().where(
        job_cursors.c.job_id == jobs.c.id, job_cursors.c.void_below < jobs.c.void_below
    ),
)
"""Jobs that go on and have void records."""


_TRIES: Final = RetryRules(backoff_s=1.0, backoff_s_max=60.0)
"""When a job that cannot be emitted is tried again: each try reads its files from their start."""


@dataclass(frozen=True, slots=True)
class _Failed:
    """A job that could not be emitted."""

    count: int  # times in a row
    again_s: float  # monotonic


class ResumeSweep:
    """Looks for resumed jobs; any number of processes may. Used by one thread."""

    def __init__(
        self, engine: sa.Engine, again: ReEmitter, clock: Clock, *, window_items_max: int
    ) -> None:
        """A tenant and model has at most `window_items_max` on the log by what is emitted here."""
        self._engine = engine
        self._again = again
        self._clock = clock
        self._window_items_max = window_items_max
        self._failed: dict[UUID, _Failed] = {}

    def step(self) -> None:
        """Emit what is due and fits. Raises DeliveryError, and one of DATABASE_AWAY.

        A job that could not be emitted waits, and nobody waits for it.
        """
        with self._engine.begin() as connection:
            due = connection.scalars(resume_query()).all()
            loads = job_loads(connection) if due else []
        self._failed = {job_id: self._failed[job_id] for job_id in due if job_id in self._failed}
        now_s = self._clock.monotonic_s()
        waiting = {job_id for job_id, failed in self._failed.items() if now_s < failed.again_s}
        ready = [job_id for job_id in due if job_id not in waiting]
        loads = [load for load in loads if load.job_id not in waiting]
        for job_id in jobs_within_window(ready, loads, self._window_items_max):
            self._resume(job_id, now_s)

    def _resume(self, job_id: UUID, now_s: float) -> None:
        try:
            count = self._again.emit(job_id, sa.and_(RESUME_DUE, jobs.c.id == job_id))
        except MillraceError as failure:
            record_job_failure(job_id, failure)
            times = self._failed[job_id].count + 1 if job_id in self._failed else 1
            self._failed[job_id] = _Failed(times, now_s + backoff_s(times, 1.0, _TRIES))
            return
        if count:
            metrics.ITEMS_RESUMED.inc(count)
            _LOG.info("a job goes on", extra={"job": job_id.hex, "items": count})


def resume_query() -> sa.Select[UUID]:
    """Return the query of the jobs that are due, the oldest first."""
    query: sa.Select[UUID] = sa.select(jobs.c.id)
    return query.where(RESUME_DUE).order_by(jobs.c.created_at, jobs.c.id)


def jobs_within_window(
    due: Sequence[UUID], loads: Collection[JobLoad], window_items_max: int
) -> list[UUID]:
    """Return which of the jobs `due` may emit what they lack now. Pure.

    What is outstanding of a due job is void: it counts from its emission on. A tenant and model
    with nothing else on the log may always go on, so nothing waits for ever.
    """
    by_id = {load.job_id: load for load in loads}
    waiting = set(due)
    out: Counter[TenantModel] = Counter()
    for load in loads:
        if load.job_id not in waiting:
            out[load.pair] += load.outstanding
    chosen = []
    for job_id in due:
        found = by_id.get(job_id)
        if found is None:
            continue  # it was closed between the two looks
        its = found.outstanding
        if not out[found.pair] or out[found.pair] + its <= window_items_max:
            out[found.pair] += its
            chosen.append(job_id)
    return chosen
