"""Close jobs whose completion window is over, by the database's time."""

from typing import Final

import sqlalchemy as sa

from core.states import CloseReason, JobState
from jobs import metrics
from jobs.days import job_day
from jobs.outbox_rows import NOTIFY_JOBS, NOTIFY_OUTBOX, close_inserts
from jobs.tables import jobs

_SWEEP_MAX: Final = 100


def expiry_due(limit: int) -> sa.Select[tuple[object, ...]]:
    """Return the query that locks jobs to close; rivals skip each other's."""
    return (
        sa.select(jobs.c.id, jobs.c.created_at)
        .where(
            jobs.c.state == JobState.IN_PROGRESS.value,
            jobs.c.settled_at.is_(None),
            jobs.c.close_reason.is_(None),
            jobs.c.expires_at <= sa.func.now(),
        )
        .limit(limit)
        .with_for_update(skip_locked=True, key_share=True)
    )


class ExpirySweep:
    """Closes everything that is due; any number of replicas may sweep."""

    def __init__(self, engine: sa.Engine) -> None:
        """Use connections of `engine`."""
        self._engine = engine

    def step(self) -> None:
        """Sweep until nothing is due."""
        count = _SWEEP_MAX
        while count == _SWEEP_MAX:
            with self._engine.begin() as connection:
                count = close_expired(connection)
            metrics.JOBS_EXPIRED.inc(count)


def close_expired(connection: sa.Connection) -> int:
    """Close what is due, in one transaction of bounded size; return how many jobs.

    The state stays: the writer gives the open items their rows and moves the job on.
    """
    due = connection.execute(expiry_due(_SWEEP_MAX)).all()
    if not due:
        return 0
    connection.execute(
        sa.update(jobs)
        .where(jobs.c.id.in_([job.id for job in due]))
        .values(close_reason=CloseReason.EXPIRED.value)
    )
    for job in due:
        for statement in close_inserts(job.id, job_day(job.created_at), CloseReason.EXPIRED):
            connection.execute(statement)
    connection.execute(NOTIFY_OUTBOX)
    connection.execute(NOTIFY_JOBS)
    return len(due)
