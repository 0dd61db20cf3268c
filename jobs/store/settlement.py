"""A job that gets no more items and has all its rows settles, though no row was the last to come.

Mostly the results writer settles a job, with its last row. A seal, or the verdict on an appended
file, can come after that row.
"""

from uuid import UUID

import sqlalchemy as sa

from core.states import JobState
from jobs.store.outbox import event_insert
from jobs.tables.jobs import jobs
from jobs.tables.progress import job_counters


def lock_counters(connection: sa.Connection, job_id: UUID | None) -> None:
    """Lock a job's counters, before the job: in the order in which the results writer does."""
    query = sa.select(job_counters.c.job_id).where(job_counters.c.job_id == job_id)
    connection.execute(query.with_for_update())


def settle_if_whole(connection: sa.Connection, job_id: UUID) -> bool:
    """Settle a job in progress whose total is final and reached; say whether it was.

    Its counters are locked. Whoever calls wakes intake and relay.
    """
    counted = job_counters.c
    settled = connection.execute(
        sa.update(jobs)
        .where(
            jobs.c.id == job_id,
            counted.job_id == jobs.c.id,
            jobs.c.state == JobState.IN_PROGRESS.value,
            jobs.c.total_final,
            jobs.c.settled_at.is_(None),
            jobs.c.total_count
            == counted.succeeded + counted.failed + counted.cancelled + counted.expired,
        )
        .values(
            state=JobState.FINALIZING.value,
            settled_at=sa.func.now(),
            finalizing_at=sa.func.now(),
        )
        .returning(jobs.c.tenant_id, sa.extract("epoch", sa.func.now()))
    ).one_or_none()
    if settled is None:
        return False
    tenant_id, now_s = settled
    connection.execute(event_insert(job_id, tenant_id, JobState.FINALIZING, float(now_s)))
    return True
