"""Republishes the record by which copies take over results, for jobs whose record was lost.

Normally copies get their rows with the result of their original, or with the verdict on an appended
file.
"""

from datetime import timedelta
from typing import Any, Final

import sqlalchemy as sa

from jobs.expansion.cursors import restart_stall_wait
from jobs.expansion.job_loads import OPEN
from jobs.store.outbox import NOTIFY_OUTBOX, copies_insert
from jobs.tables.jobs import jobs
from jobs.tables.progress import job_counters, job_cursors

_SWEEP_MAX: Final = 100


def overdue_copies_query(limit: int, stall_limit_s: float) -> sa.Select[Any]:
    """Return the query that locks stalled jobs whose originals are terminal and copies are not.

    A job is stalled after `stall_limit_s` without change. The lock on the cursor keeps other
    processes from sweeping the same job.
    """
    stalled_since = sa.func.now() - timedelta(seconds=stall_limit_s)
    counted, cursor = job_counters.c, job_cursors.c
    ended = counted.succeeded + counted.failed + counted.cancelled + counted.expired
    return (
        sa.select(jobs.c.id, jobs.c.total_count)
        .join(job_counters, counted.job_id == jobs.c.id)
        .join(job_cursors, cursor.job_id == jobs.c.id)
        .where(
            OPEN,
            jobs.c.deduplicate,
            cursor.item_index >= jobs.c.total_count,
            ended < jobs.c.total_count,
            ended - counted.copied >= cursor.item_index - cursor.copy_count,
            counted.updated_at < stalled_since,
            sa.func.coalesce(cursor.repaired_at, jobs.c.created_at) < stalled_since,
        )
        .limit(limit)
        .with_for_update(of=job_cursors, skip_locked=True)
    )


class CopySweep:
    """Finds such jobs. Any number of processes may run it."""

    def __init__(self, engine: sa.Engine, *, stall_limit_s: float) -> None:
        """Jobs without change for `stall_limit_s` are swept."""
        self._engine = engine
        self._stall_limit_s = stall_limit_s

    def run_once(self) -> None:
        """Republish the record of each overdue job; a repeated record changes nothing."""
        with self._engine.begin() as connection:
            found = connection.execute(overdue_copies_query(_SWEEP_MAX, self._stall_limit_s)).all()
            for job in found:
                connection.execute(copies_insert(job.id, 0, job.total_count))
            if found:
                restart_stall_wait(connection, [job.id for job in found])
                connection.execute(NOTIFY_OUTBOX)
