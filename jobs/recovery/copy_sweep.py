"""Lets copies of ended items take over their results when the record that says so was lost.

Mostly they do by themselves: behind their original's result, or by the verdict on an appended file.
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
    """Return the query that locks jobs whose originals have all ended, and not their copies.

    Nothing changed for `stall_limit_s`. Locking the cursor keeps rivals apart.
    """
    silent_since = sa.func.now() - timedelta(seconds=stall_limit_s)
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
            counted.updated_at < silent_since,
            sa.func.coalesce(cursor.repaired_at, jobs.c.created_at) < silent_since,
        )
        .limit(limit)
        .with_for_update(of=job_cursors, skip_locked=True)
    )


class CopySweep:
    """Looks for such jobs; any number of processes may."""

    def __init__(self, engine: sa.Engine, *, stall_limit_s: float) -> None:
        """Use connections of `engine`."""
        self._engine = engine
        self._stall_limit_s = stall_limit_s

    def step(self) -> None:
        """Say it again for what is overdue; a repeat changes nothing."""
        with self._engine.begin() as connection:
            found = connection.execute(overdue_copies_query(_SWEEP_MAX, self._stall_limit_s)).all()
            for job in found:
                connection.execute(copies_insert(job.id, 0, job.total_count))
            if found:
                restart_stall_wait(connection, [job.id for job in found])
                connection.execute(NOTIFY_OUTBOX)
