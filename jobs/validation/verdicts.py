"""Records the verdicts on the first file of a job and on appended files.

Lock order: the counters, then the job, then its lease. Claims use the same order.
"""

from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from core.states import CloseReason, JobState
from jobs.input.token_sums import Tokens
from jobs.leasing import leases
from jobs.leasing.leases import Lease
from jobs.ordering.stored_orders import StoredOrder
from jobs.store.controls import has_unvalidated
from jobs.store.job_closing import (
    close_values,
    drop_unvalidated_files,
    lock_counters,
    settle_if_complete,
)
from jobs.store.model_pins import pins_of
from jobs.store.outbox import NOTIFY_JOBS, copies_insert, event_insert, publish_close
from jobs.store.tenant_quarantines import quarantine_end
from jobs.tables.files import job_inputs
from jobs.tables.jobs import jobs
from jobs.validation.file_validation import ValidationResult
from jobs.validation.pinned_models import model_columns, new_pins
from storage.postgres.outbox import NOTIFY_OUTBOX

VALIDATION_DUE = sa.and_(
    # Literals, so that Postgres recognises the partial index. Requests need no verdict, and any
    # number of them may be open.
    sa.literal_column("jobs.kind = 'batch'"),
    sa.literal_column("jobs.state IN ('validating', 'cancelling')"),
    jobs.c.total_count.is_(None),
)
"""Jobs without a verdict; a job that is being cancelled also needs its item count."""


def record_verdict(
    connection: sa.Connection,
    lease: Lease,
    result: ValidationResult,
    order: StoredOrder | None = None,
) -> JobState | None:
    """Record the verdict, with the stored order of the items; return the new state of the job.

    Returns None if the job has a verdict. Raises LeaseLostError.
    """
    # Lock the job before its lease, as claims do: the other order could deadlock.
    job = connection.execute(
        sa.select(
            jobs.c.id,
            jobs.c.tenant_id,
            jobs.c.state,
            jobs.c.close_reason,
            jobs.c.created_at,
            jobs.c.expires_at,
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
    if is_cancelling or result.assessed_deadline != job.expires_at:
        result = _without_estimate(result)
    columns = _rejected if result.error_count else _accepted
    state, values = columns(result, is_cancelling=is_cancelling)
    if order is not None and state is JobState.IN_PROGRESS:
        values |= _order_columns(order)
    if state is JobState.IN_PROGRESS:
        values["quarantined_until"] = quarantine_end(job.tenant_id, str(values["pool"]))
    update = sa.update(jobs).where(jobs.c.id == job.id)
    connection.execute(update.values(state=state.value, **values))
    if result.error_count:
        drop_unvalidated_files(connection, [job.id])
    else:
        _close_if_due(connection, job)
    if state.value != job.state:
        now: datetime = job.now
        connection.execute(event_insert(job.id, job.tenant_id, state, now.timestamp()))
    connection.execute(NOTIFY_OUTBOX)
    connection.execute(NOTIFY_JOBS)
    return state


def _without_estimate(result: ValidationResult) -> ValidationResult:
    """Return the result of a job that was cancelled, or whose deadline has changed since then."""
    if result.assessed_deadline is None:
        return result
    return replace(result, errors=(), error_count=0, is_expected_late=False, assessed_deadline=None)


def _rejected(
    result: ValidationResult, *, is_cancelling: bool
) -> tuple[JobState, dict[str, object]]:
    """Return the state and columns of a job that ends: none of its items has run."""
    errors: dict[str, object] = {
        "errors": [error.as_json() for error in result.errors],
        "error_count": result.error_count,
    }
    if is_cancelling:
        return JobState.CANCELLED, errors | {"cancelled_at": sa.func.now(), "total_count": 0}
    return JobState.FAILED, errors | {"failed_at": sa.func.now()}


def _accepted(
    result: ValidationResult, *, is_cancelling: bool
) -> tuple[JobState, dict[str, object]]:
    """Return the state and columns of a job whose items may run, unless it is cancelling."""
    assert result.model is not None
    columns: dict[str, object] = {
        "total_count": result.item_count,
        "estimated_prompt_tokens": result.tokens.prompt,
        "estimated_output_tokens": result.tokens.output,
        "expected_late": result.is_expected_late,
        **model_columns(result.names or {result.model.name: result.model}),
    }
    if is_cancelling:
        return JobState.CANCELLING, columns
    return JobState.IN_PROGRESS, columns | {"in_progress_at": sa.func.now()}


def _order_columns(order: StoredOrder) -> dict[str, object]:
    """Return the columns of an accepted file whose items have an order of their own."""
    return {"order_key": order.key, "order_saved_tokens": order.saved_tokens}


def _close_if_due(connection: sa.Connection, job: sa.Row[tuple[object, ...]]) -> None:
    """Publish the close of a job that was cancelled or expired during its validation."""
    reason = job.close_reason
    if reason is None and job.is_expired:
        reason = CloseReason.EXPIRED.value
        values = close_values(CloseReason.EXPIRED)
        connection.execute(sa.update(jobs).where(jobs.c.id == job.id).values(values))
        drop_unvalidated_files(connection, [job.id])
    if reason is not None:
        publish_close(connection, job, CloseReason(reason))


APPEND_DUE: Final = sa.and_(
    jobs.c.state == "in_progress",
    jobs.c.close_reason.is_(None),
    sa.exists().where(job_inputs.c.job_id == jobs.c.id, job_inputs.c.state == "validating"),
)
"""Jobs with an appended file without a verdict; their first file was accepted."""


def record_append_verdict(
    connection: sa.Connection,
    lease: Lease,
    number: int,
    result: ValidationResult,
    order: StoredOrder | None = None,
) -> str | None:
    """Record the verdict on file `number`; return the new state of the file.

    Returns None if the file has a verdict or its job was closed. Raises LeaseLostError.
    """
    job_id = lease.job_id
    lock_counters(connection, job_id)
    job = connection.execute(
        sa.select(jobs).where(jobs.c.id == job_id, APPEND_DUE).with_for_update()
    ).one_or_none()
    leases.lock_lease(connection, lease)
    if job is None:
        return None
    values: dict[str, Any] = {
        "state": "refused",
        "errors": [error.as_json() for error in result.errors],
        "error_count": result.error_count,
    }
    if not result.error_count:
        values = {
            "state": "accepted",
            "first_index": job.total_count,
            "item_count": result.item_count,
        }
        if order is not None:
            values |= _order_columns(order)
    updated = connection.execute(
        sa.update(job_inputs)
        .where(
            job_inputs.c.job_id == job_id,
            job_inputs.c.number == number,
            job_inputs.c.state == "validating",
        )
        .values(values)
    )
    if updated.rowcount == 0:
        return None
    added = 0 if result.error_count else result.item_count
    tokens = result.tokens if added else Tokens()
    pinned: dict[str, object] = {}
    if added and result.names:
        pinned["models"] = {**pins_of(job), **new_pins(result.names)}
    connection.execute(
        sa.update(jobs)
        .where(jobs.c.id == job_id)
        .values(
            **pinned,
            total_count=jobs.c.total_count + added,
            # NULL stays: the estimate of some of the items would count for all of them.
            estimated_prompt_tokens=jobs.c.estimated_prompt_tokens + tokens.prompt,
            estimated_output_tokens=jobs.c.estimated_output_tokens + tokens.output,
            total_final=job.sealed and not has_unvalidated(connection, job_id),
            control_version=jobs.c.control_version + 1,  # makes intake reload the job
        )
    )
    if job.deduplicate and added:
        # Originals may have ended already: the results writer copies their results.
        connection.execute(copies_insert(job_id, job.total_count, job.total_count + added))
    settle_if_complete(connection, job_id)
    connection.execute(NOTIFY_OUTBOX)
    connection.execute(NOTIFY_JOBS)
    state: str = values["state"]
    return state
