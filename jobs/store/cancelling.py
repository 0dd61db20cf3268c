"""A job closed by its owner: the state, what tells everyone, and the record that decides."""

from uuid import UUID

import sqlalchemy as sa

from core.states import TERMINAL_STATES, CloseReason, JobKind, JobState
from jobs.store.closes import stop
from jobs.tables.jobs import jobs


def cancel(
    connection: sa.Connection, tenant_id: UUID, job_id: UUID | None, kind: JobKind
) -> JobState | None:
    """Close a job; one that is being closed, or has ended, stays as it is.

    Returns the state that it was in, None where the tenant has no such job.
    """
    row = connection.execute(
        sa.select(jobs)
        .where(jobs.c.id == job_id, jobs.c.tenant_id == tenant_id, jobs.c.kind == kind)
        .where(jobs.c.deleted_at.is_(None))
        .with_for_update(key_share=True)
    ).one_or_none()
    if row is None:
        return None
    state = JobState(row.state)
    is_open = state not in TERMINAL_STATES and state is not JobState.CANCELLING
    if is_open and row.close_reason is None:
        stop(connection, row, CloseReason.CANCELLED)
    return state
