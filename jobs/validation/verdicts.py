"""The transaction that ends validation: the job runs, has failed, or was cancelled meanwhile."""

from datetime import datetime
from uuid import UUID

import sqlalchemy as sa

from core.states import CloseReason, JobState
from jobs.leasing import leases
from jobs.leasing.leases import Lease
from jobs.store.days import job_day
from jobs.store.job_closing import close_values, drop_unvalidated_files
from jobs.store.outbox import NOTIFY_JOBS, NOTIFY_OUTBOX, close_inserts, event_insert
from jobs.tables.jobs import jobs
from jobs.validation.file_validation import ValidationResult

VALIDATION_DUE = sa.and_(
    # Literal, so that Postgres sees that the partial index fits: requests need no verdict, and
    # any number of them may be open.
    sa.literal_column("jobs.kind = 'batch'"),
    jobs.c.state.in_([JobState.VALIDATING.value, JobState.CANCELLING.value]),
    jobs.c.total_count.is_(None),
)
"""Which jobs await their verdict; one that is being cancelled needs its count too."""


def record_verdict(
    connection: sa.Connection, lease: Lease, verdict: ValidationResult
) -> JobState | None:
    """Write `verdict` and return the state that the job is in now.

    None when the job has a verdict already. Raises LeaseLostError.
    """
    # The job before its lease, as those who claim lock them: the other order could deadlock.
    job = connection.execute(
        sa.select(
            jobs.c.id,
            jobs.c.tenant_id,
            jobs.c.state,
            jobs.c.close_reason,
            jobs.c.created_at,
            (jobs.c.expires_at <= sa.func.now()).label("is_expired"),
            sa.func.now().label("now"),
        )
        .where(jobs.c.id == lease.job_id, VALIDATION_DUE)
        .with_for_update()
    ).one_or_none()
    leases.lock_lease(connection, lease)
    if job is None:
        return None
    is_cancelling = job.state == JobState.CANCELLING.value
    if verdict.error_count:
        state = _refuse(connection, job.id, verdict, is_cancelling=is_cancelling)
    else:
        state = _accept(connection, job.id, verdict, is_cancelling=is_cancelling)
        _close_if_due(connection, job)
    if state.value != job.state:
        now: datetime = job.now
        connection.execute(event_insert(job.id, job.tenant_id, state, now.timestamp()))
    connection.execute(NOTIFY_OUTBOX)
    connection.execute(NOTIFY_JOBS)
    return state


def _refuse(
    connection: sa.Connection, job_id: UUID, verdict: ValidationResult, *, is_cancelling: bool
) -> JobState:
    """Nothing was executed, so the job is at its end."""
    columns: dict[str, object] = {
        "errors": [error.as_json() for error in verdict.errors],
        "error_count": verdict.error_count,
    }
    if is_cancelling:
        state = JobState.CANCELLED
        columns |= {"cancelled_at": sa.func.now(), "total_count": 0}
    else:
        state = JobState.FAILED
        columns |= {"failed_at": sa.func.now()}
    _update(connection, job_id, state, columns)
    drop_unvalidated_files(connection, [job_id])
    return state


def _accept(
    connection: sa.Connection, job_id: UUID, verdict: ValidationResult, *, is_cancelling: bool
) -> JobState:
    assert verdict.model is not None
    columns: dict[str, object] = {
        "total_count": verdict.item_count,
        "model": verdict.model.name,
        "model_version": verdict.model.version,
        "pool": verdict.model.pool,
    }
    state = JobState.CANCELLING
    if not is_cancelling:
        state = JobState.IN_PROGRESS
        columns["in_progress_at"] = sa.func.now()
    _update(connection, job_id, state, columns)
    return state


def _update(
    connection: sa.Connection, job_id: UUID, state: JobState, columns: dict[str, object]
) -> None:
    connection.execute(
        sa.update(jobs).where(jobs.c.id == job_id).values(state=state.value, **columns)
    )


def _close_if_due(connection: sa.Connection, job: sa.Row[tuple[object, ...]]) -> None:
    """A cancel had to wait for the count; an expiry may have come during validation."""
    reason = job.close_reason
    if reason is None and job.is_expired:
        reason = CloseReason.EXPIRED.value
        values = close_values(CloseReason.EXPIRED)
        connection.execute(sa.update(jobs).where(jobs.c.id == job.id).values(values))
        drop_unvalidated_files(connection, [job.id])
    if reason is not None:
        for statement in close_inserts(job.id, job_day(job.created_at), CloseReason(reason)):
            connection.execute(statement)
