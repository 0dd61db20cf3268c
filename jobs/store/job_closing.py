"""Closes jobs: the columns and records of a close, cancellation by the owner, and settlement.

A job settles when it gets no more items and every item has its row. Normally the results writer
settles it with the last row; a seal, or the verdict on an appended file, can come after that row.
"""

from collections.abc import Collection
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from core.states import STOPPED_EARLY, TERMINAL_STATES, CloseReason, JobKind, JobState
from jobs.store.outbox import NOTIFY_JOBS, event_insert, publish_close
from jobs.tables.files import job_inputs
from jobs.tables.jobs import job_counters, jobs
from storage.postgres.outbox import NOTIFY_OUTBOX

_NO_MORE_FILES: Final = {"sealed": True, "total_final": True}


def close_values(reason: CloseReason) -> dict[str, Any]:
    """Return the columns of `jobs` that a close sets; also call `drop_unvalidated_files`."""
    values: dict[str, Any] = {"close_reason": reason.value, **_NO_MORE_FILES}
    if reason in STOPPED_EARLY:
        values |= {"state": JobState.CANCELLING.value, "cancelling_at": sa.func.now()}
    return values


def drop_unvalidated_files(connection: sa.Connection, job_ids: Collection[UUID]) -> None:
    """Drop appended files of closed jobs without a verdict: none of their items counts."""
    connection.execute(
        sa.update(job_inputs)
        .where(job_inputs.c.job_id.in_(job_ids), job_inputs.c.state == "validating")
        .values(state="dropped")
    )


def start_cancelling(connection: sa.Connection, row: sa.Row[Any], reason: CloseReason) -> None:
    """Move a job to cancelling; `row` is of `jobs`, locked, in a state that allows it.

    The close record is published once the number of items is known, unless every item has its row.
    """
    closed_at = connection.execute(
        sa.update(jobs)
        .where(jobs.c.id == row.id)
        .values(close_values(reason))
        .returning(jobs.c.cancelling_at)
    ).scalar_one()
    drop_unvalidated_files(connection, [row.id])
    if row.total_count is not None and row.settled_at is None:
        publish_close(connection, row, reason)
    at_s = closed_at.timestamp()
    connection.execute(event_insert(row.id, row.tenant_id, JobState.CANCELLING, at_s))
    connection.execute(NOTIFY_OUTBOX)
    connection.execute(NOTIFY_JOBS)


def lock_owned_job(
    connection: sa.Connection, tenant_id: UUID, job_id: UUID | None, kind: JobKind
) -> sa.Row[Any] | None:
    """Lock a job of a tenant; the row also has the database's `now`."""
    query = sa.select(jobs, sa.func.now().label("now")).where(
        jobs.c.id == job_id,
        jobs.c.tenant_id == tenant_id,
        jobs.c.kind == kind,
        jobs.c.deleted_at.is_(None),
    )
    return connection.execute(query.with_for_update(key_share=True)).one_or_none()


def cancel_owned_job(
    connection: sa.Connection, tenant_id: UUID, job_id: UUID | None, kind: JobKind
) -> JobState | None:
    """Cancel a job of a tenant; a job that is closing or has ended does not change.

    Returns the state before the call, or None if the tenant has no such job.
    """
    row = lock_owned_job(connection, tenant_id, job_id, kind)
    if row is None:
        return None
    state = JobState(row.state)
    is_open = state not in TERMINAL_STATES and state is not JobState.CANCELLING
    if is_open and row.close_reason is None:
        start_cancelling(connection, row, CloseReason.CANCELLED)
    return state


def lock_counters(connection: sa.Connection, job_id: UUID | None) -> None:
    """Lock a job's counters. Call it before locking the job, as the results writer does."""
    query = sa.select(job_counters.c.job_id).where(job_counters.c.job_id == job_id)
    connection.execute(query.with_for_update())


def settle_if_complete(connection: sa.Connection, job_id: UUID) -> bool:
    """Settle a job in progress whose total is final and reached; return whether it settled.

    The caller has locked its counters, and notifies intake and the relay.
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
            state=JobState.FINALIZING.value, settled_at=sa.func.now(), finalizing_at=sa.func.now()
        )
        .returning(jobs.c.tenant_id, sa.extract("epoch", sa.func.now()))
    ).one_or_none()
    if settled is None:
        return False
    tenant_id, now_s = settled
    connection.execute(event_insert(job_id, tenant_id, JobState.FINALIZING, float(now_s)))
    return True
