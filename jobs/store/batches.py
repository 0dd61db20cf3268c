"""Batches as clients see them: create, read, list, cancel. Each runs in the caller's transaction.

A job belongs to one tenant and is not found for any other. A job of kind `request` is not a batch.
"""

from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import aggregate_order_by

from core.ids import new_uuid
from core.limits import (
    ERROR_LINES_MAX,
    METADATA_KEY_CHARS_MAX,
    METADATA_PAIRS_MAX,
    METADATA_VALUE_CHARS_MAX,
)
from core.states import TERMINAL_STATES, JobKind, JobState
from jobs.errors import InvalidFieldError, JobEndedError, JobNotFoundError, OpenBatchLimitError
from jobs.store.files import EXPIRES_AFTER_S_MAX, EXPIRES_AFTER_S_MIN, UNFINISHED, find_input
from jobs.store.job_closing import cancel_owned_job
from jobs.store.job_options import JobOptions, window_seconds
from jobs.store.job_schedule import check_schedule
from jobs.store.keyset_pages import Page, PageCursor, read_page, unknown_cursor_error
from jobs.store.outbox import NOTIFY_JOBS, event_insert
from jobs.tables.files import job_inputs
from jobs.tables.jobs import job_counters, job_cursors, jobs
from registry.models import ENDPOINTS
from storage.postgres.database_times import seconds
from storage.postgres.outbox import NOTIFY_OUTBOX
from tenancy.tables import tenants
from tenancy.tenants import has_zero_retention

_COUNTERS: Final = [
    column
    for column in job_counters.c
    if column.name not in {"job_id", "updated_at", "changed_xid"}
]
IS_BATCH: Final = jobs.c.kind == JobKind.BATCH.value
# Literal, so that Postgres recognises the partial index on open batches.
_IS_BATCH_LITERAL: Final = jobs.c.kind == sa.literal_column("'batch'")

APPENDED_ERRORS_MAX: Final = 1_000
"""Validation errors of appended files shown with one batch. Each file keeps its first hundred, so
a page of batches with all of them could have a million."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A batch requested by a client; the types are checked, the values are not."""

    input_file_id: UUID | None  # None: not a valid id
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = field(default=None, repr=False)
    output_expires_after_s: int | None = None
    traceparent: str = ""
    options: JobOptions = field(default_factory=JobOptions)


def create_job(
    connection: sa.Connection, tenant_id: UUID, new: NewJob, *, open_max: int
) -> sa.Row[Any]:
    """Insert a job with its cursor, counters and event.

    Raises InvalidFieldError, UploadedFileNotFoundError, OpenBatchLimitError.
    """
    window_s = checked_window_s(new)
    options = new.options.checked_values()
    file = find_input(connection, tenant_id, new.input_file_id)
    check_open_batch_limit(connection, tenant_id, open_max=open_max)
    now, tenant_hours = connection.execute(
        sa.select(sa.func.now(), tenants.c.bulk_hours).where(tenants.c.id == tenant_id)
    ).one()
    check_schedule(
        now=now,
        expires_at=now + timedelta(seconds=window_s),
        not_before=options["not_before"],
        bulk_hours=options["bulk_hours"],
        tenant_hours=tenant_hours,
    )
    job_id = new_uuid()
    created_at = connection.execute(
        jobs.insert()
        .values(
            id=job_id,
            tenant_id=tenant_id,
            endpoint=new.endpoint,
            input_file_id=file.id,
            input_key=file.object_key,
            input_bytes=file.size_bytes,
            completion_window=new.completion_window,
            metadata=sa.null() if new.metadata is None else new.metadata,
            output_expires_after_s=new.output_expires_after_s,
            traceparent=new.traceparent,
            zero_retention=has_zero_retention(tenant_id),
            expires_at=sa.func.now() + seconds(window_s),
            **options,
        )
        .returning(jobs.c.created_at)
    ).scalar_one()
    connection.execute(job_cursors.insert().values(job_id=job_id))
    connection.execute(job_counters.insert().values(job_id=job_id))
    at_s = created_at.timestamp()
    connection.execute(event_insert(job_id, tenant_id, JobState.VALIDATING, at_s))
    connection.execute(NOTIFY_OUTBOX)
    connection.execute(NOTIFY_JOBS)
    return find_job(connection, tenant_id, job_id)


def find_job(
    connection: sa.Connection, tenant_id: UUID, job_id: UUID | None, *, with_errors: bool = False
) -> sa.Row[Any]:
    """Return the job with its counters, optionally with the errors of the files appended last.

    Raises JobNotFoundError, also for foreign ids.
    """
    query = job_query(with_errors=with_errors)
    row = connection.execute(query, {"job_id": job_id, "tenant_id": tenant_id}).one_or_none()
    if row is None:
        raise JobNotFoundError
    return row


def list_jobs(connection: sa.Connection, tenant_id: UUID, cursor: PageCursor) -> Page:
    """Return a page of the tenant's jobs with their counters. Raises InvalidFieldError."""
    if cursor.after is not None and not _is_batch(connection, cursor.after):
        raise unknown_cursor_error()
    query = listed_query().add_columns(tenant_hours(tenant_id))
    return read_page(connection, query, jobs, tenant_id=tenant_id, cursor=cursor)


def listed_query(*, with_errors: bool = False) -> sa.Select[Any]:
    """Return the query of visible batches with their counters, and their appended files as JSON."""
    errors = _last_errors() if with_errors else sa.null()
    files = (
        sa.select(job_inputs, errors.label("shown_errors"))
        .where(job_inputs.c.job_id == jobs.c.id)
        .correlate(jobs)
        .subquery()
    )
    columns = files.c
    file = sa.func.json_build_object(
        "file_id", columns.file_id, "state", columns.state, "item_count", columns.item_count,
        "errors", columns.shown_errors, "error_count", columns.error_count,
    )  # fmt: skip
    appended = sa.select(
        sa.func.json_agg(aggregate_order_by(file, columns.number))
    ).scalar_subquery()
    query = with_counters().add_columns(appended.label("appended"), sa.func.now().label("now"))
    return query.where(IS_BATCH, jobs.c.deleted_at.is_(None))


def cancel_job(connection: sa.Connection, tenant_id: UUID, job_id: UUID | None) -> sa.Row[Any]:
    """Cancel a batch for its owner; a batch that is closing does not change.

    Raises JobNotFoundError, JobEndedError.
    """
    state = cancel_owned_job(connection, tenant_id, job_id, JobKind.BATCH)
    if state is None:
        raise JobNotFoundError
    if state in TERMINAL_STATES:
        raise JobEndedError(f"Cannot cancel a batch with status '{state}'.")
    return find_job(connection, tenant_id, job_id)


def checked_window_s(new: NewJob) -> int:
    """Return the completion window in seconds. Raises InvalidFieldError for the first mistake."""
    if new.endpoint not in ENDPOINTS:
        raise InvalidFieldError(f"Supported endpoints: {', '.join(ENDPOINTS)}.", param="endpoint")
    window_s = window_seconds(new.completion_window)
    if window_s is None:
        raise InvalidFieldError(
            "Give '24h', or a number with s, m, h or d, from 30s to 30d.", param="completion_window"
        )
    expires_after_s = new.output_expires_after_s
    if expires_after_s is not None and not (
        EXPIRES_AFTER_S_MIN <= expires_after_s <= EXPIRES_AFTER_S_MAX
    ):
        raise InvalidFieldError(
            f"Give {EXPIRES_AFTER_S_MIN} to {EXPIRES_AFTER_S_MAX} seconds.",
            param="output_expires_after.seconds",
        )
    _check_metadata(new.metadata or {})
    return window_s


@cache
def job_query(*, with_errors: bool = False) -> sa.Select[Any]:
    """Return the query of one batch with its counters, by the parameters `job_id`, `tenant_id`.

    Clients ask for it many times a second, and to build it takes as long as to run it.
    """
    tenant_id = sa.bindparam("tenant_id", type_=jobs.c.tenant_id.type)
    is_owned = (jobs.c.id == sa.bindparam("job_id"), jobs.c.tenant_id == tenant_id)
    query = listed_query(with_errors=with_errors).add_columns(tenant_hours(tenant_id))
    return query.where(*is_owned)


def tenant_hours(tenant_id: UUID | sa.ColumnElement[UUID]) -> sa.ColumnElement[str]:
    """Return the bulk hours of a tenant, read once for a query; of a column, once for each row."""
    query = sa.select(tenants.c.bulk_hours).where(tenants.c.id == tenant_id)
    return query.scalar_subquery().label("tenant_bulk_hours")


def with_counters() -> sa.Select[Any]:
    """Return the query of jobs with their counters."""
    return sa.select(*jobs.c, *_COUNTERS).join(job_counters, job_counters.c.job_id == jobs.c.id)


def _last_errors() -> sa.ColumnElement[Any]:
    """Return the errors of a file, or null if it and later files have too many in total."""
    columns = job_inputs.c
    kept = sa.func.least(columns.error_count, ERROR_LINES_MAX)
    running_total = sa.func.sum(kept).over(order_by=columns.number.desc())
    return sa.case((running_total <= APPENDED_ERRORS_MAX, columns.errors))


def _is_batch(connection: sa.Connection, job_id: UUID) -> bool:
    """Whether the id is a batch or unknown; `read_page` rejects unknown ids."""
    kind = connection.execute(sa.select(jobs.c.kind).where(jobs.c.id == job_id)).scalar()
    return kind is None or kind == JobKind.BATCH.value


def _check_metadata(metadata: dict[str, str]) -> None:
    """Raise InvalidFieldError if the metadata exceeds a limit or Postgres cannot store it."""
    if len(metadata) > METADATA_PAIRS_MAX:
        raise InvalidFieldError(f"At most {METADATA_PAIRS_MAX} pairs.", param="metadata")
    for key, value in metadata.items():
        if len(key) > METADATA_KEY_CHARS_MAX or len(value) > METADATA_VALUE_CHARS_MAX:
            raise InvalidFieldError(
                f"A key holds at most {METADATA_KEY_CHARS_MAX} characters and a value "
                f"{METADATA_VALUE_CHARS_MAX}.",
                param="metadata",
            )
        if "\x00" in key or "\x00" in value:
            raise InvalidFieldError("The character U+0000 is not allowed.", param="metadata")


def check_open_batch_limit(connection: sa.Connection, tenant_id: UUID, *, open_max: int) -> None:
    """Raise OpenBatchLimitError if a tenant has `open_max` batches that have not ended.

    Single requests do not count: rounds of intake skip them, and stall recovery watches the oldest
    of each pool. Nothing is locked, so concurrent creations may exceed the limit by their number.
    """
    if connection.scalar(limit_query(tenant_id, open_max=open_max)) is not None:
        raise OpenBatchLimitError


def limit_query(tenant_id: UUID, *, open_max: int) -> sa.Select[Any]:
    """Return the query of one row if the tenant has reached `open_max`, and of none otherwise."""
    query = sa.select(jobs.c.tenant_id).where(
        jobs.c.tenant_id == tenant_id, _IS_BATCH_LITERAL, UNFINISHED
    )
    return query.offset(open_max - 1).limit(1)
