"""A job closed by its owner: the state, what tells everyone, and the record that decides."""

from typing import Any
from uuid import UUID

import sqlalchemy as sa

from core.states import TERMINAL_STATES, CloseReason, JobKind, JobState
from jobs.days import job_day
from jobs.outbox_rows import NOTIFY_JOBS, NOTIFY_OUTBOX, close_inserts, event_insert
from jobs.tables import jobs


def cancel(
    connection: sa.Connection, tenant_id: UUID, job_id: UUID | None, kind: JobKind
) -> JobState | None:
    """Close a job; one that is being closed, or has ended, stays as it is.

    Returns the state that it was in, None where the tenant has no such job.
    """
    row = connection.execute(
        sa.select(jobs)
        .where(jobs.c.id == job_id, jobs.c.tenant_id == tenant_id, jobs.c.kind == kind)
        .with_for_update(key_share=True)
    ).one_or_none()
    if row is None:
        return None
    state = JobState(row.state)
    is_open = state not in TERMINAL_STATES and state is not JobState.CANCELLING
    if is_open and row.close_reason is None:
        _close(connection, row)
    return state


def _close(connection: sa.Connection, row: sa.Row[Any]) -> None:
    """Move a locked job to cancelling. Once every item has its row there is nothing to close."""
    closed_at = connection.execute(
        sa.update(jobs)
        .where(jobs.c.id == row.id)
        .values(
            state=JobState.CANCELLING.value,
            cancelling_at=sa.func.now(),
            close_reason=CloseReason.CANCELLED.value,
        )
        .returning(jobs.c.cancelling_at)
    ).scalar_one()
    if row.total_count is not None and row.settled_at is None:
        for statement in close_inserts(row.id, job_day(row.created_at), CloseReason.CANCELLED):
            connection.execute(statement)
    at_s = closed_at.timestamp()
    connection.execute(event_insert(row.id, row.tenant_id, JobState.CANCELLING, at_s))
    connection.execute(NOTIFY_OUTBOX)
    connection.execute(NOTIFY_JOBS)
