"""What every close of a job sets in the transaction that records its reason, whoever writes it."""

from collections.abc import Collection
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from core.states import STOPPED_EARLY, TERMINAL_STATES, CloseReason, JobKind, JobState
from jobs.store.days import job_day
from jobs.store.outbox import NOTIFY_JOBS, NOTIFY_OUTBOX, close_inserts, event_insert
from jobs.tables.appended_files import job_inputs
from jobs.tables.jobs import jobs
from jobs.tables.progress import job_counters

_NO_MORE_FILES: Final = {"sealed": True, "total_final": True}


def close_values(reason: CloseReason) -> dict[str, Any]:
    """Return the columns of `jobs` that a close sets; see `drop_unvalidated_files` for what goes with it."""
    values: dict[str, Any] = {"close_reason": reason.value, **_NO_MORE_FILES}
    if reason in STOPPED_EARLY:
        values |= {"state": JobState.CANCELLING.value, "cancelling_at": sa.func.now()}
    return values


def drop_unvalidated_files(connection: sa.Connection, job_ids: Collection[UUID]) -> None:
    """Drop appended files of closed jobs that have no verdict yet: none of their items counts."""
    connection.execute(
        sa.update(job_inputs)
        .where(job_inputs.c.job_id.in_(job_ids), job_inputs.c.state == "validating")
        .values(state="dropped")
    )


def start_cancelling(connection: sa.Connection, row: sa.Row[Any], reason: CloseReason) -> None:
    """Move a job to cancelling; `row` is of `jobs`, locked, with a state that allows it.

    What decides goes to the log once the number of its items is known and any lacks its row.
    """
    closed_at = connection.execute(
        sa.update(jobs)
        .where(jobs.c.id == row.id)
        .values(close_values(reason))
        .returning(jobs.c.cancelling_at)
    ).scalar_one()
    drop_unvalidated_files(connection, [row.id])
    if row.total_count is not None and row.settled_at is None:
        for statement in close_inserts(row.id, job_day(row.created_at), reason):
            connection.execute(statement)
    at_s = closed_at.timestamp()
    connection.execute(event_insert(row.id, row.tenant_id, JobState.CANCELLING, at_s))
    connection.execute(NOTIFY_OUTBOX)
    connection.execute(NOTIFY_JOBS)


def cancel_owned_job(
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
        start_cancelling(connection, row, CloseReason.CANCELLED)
    return state


def lock_counters(connection: sa.Connection, job_id: UUID | None) -> None:
    """Lock a job's counters, before the job: in the order in which the results writer does."""
    query = sa.select(job_counters.c.job_id).where(job_counters.c.job_id == job_id)
    connection.execute(query.with_for_update())


def settle_if_complete(connection: sa.Connection, job_id: UUID) -> bool:
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
