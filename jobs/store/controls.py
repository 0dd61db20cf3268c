"""Controls of an open job: pause, resume, deadline, priority, schedule, append, seal.

One transaction each.

A pause makes records on the log void whose items did not run yet; after a resume intake re-emits
these items from the input file. So a paused job occupies neither the log nor a batcher.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from core.states import JobKind, JobState
from jobs.errors import InvalidFieldError, JobNotFoundError, JobNotOpenError, JobSealedError
from jobs.store.batches import find_job
from jobs.store.files import find_input
from jobs.store.job_closing import lock_counters, lock_owned_job, settle_if_complete
from jobs.store.job_options import WINDOW_S_MAX, WINDOW_S_MIN, check_priority, window_seconds
from jobs.store.job_schedule import check_schedule, checked_hours, checked_not_before
from jobs.store.outbox import NOTIFY_JOBS, outbox_insert
from jobs.tables.files import job_inputs
from jobs.tables.jobs import jobs
from storage.postgres.outbox import NOTIFY_OUTBOX
from tenancy.tables import tenants
from topics.records.catalogue import CONTROL
from topics.records.records import JobControl

NEAR_DEADLINE_S: Final = 60.0
"""An extension this close to the deadline counts as a pause and a resume: items may already be
dropped as expired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChange:
    """Requested changes; None: no change."""

    completion_window: str | None = None  # from the job's creation
    expires_at_s: int | None = None  # seconds since the epoch
    priority: int | None = None
    not_before_s: int | None = None  # seconds since the epoch; 0: it may begin at once
    bulk_hours: str | None = None  # empty: it has no hours of its own


def pause_job(connection: sa.Connection, tenant_id: UUID, job_id: UUID | None) -> sa.Row[Any]:
    """Pause a job; a paused job does not change. Its completion window continues.

    Raises JobNotFoundError, JobNotOpenError.
    """
    row = lock_open_job(connection, tenant_id, job_id, "pause")
    if row.paused_at is None:
        values = {"paused_at": sa.func.now(), "void_below": row.control_version + 1}
        write_control_state(connection, row, values)
    return find_job(connection, tenant_id, job_id)


def resume_job(connection: sa.Connection, tenant_id: UUID, job_id: UUID | None) -> sa.Row[Any]:
    """Resume a job; a job that is not paused does not change.

    Raises JobNotFoundError, JobNotOpenError.
    """
    row = lock_open_job(connection, tenant_id, job_id, "resume")
    if row.paused_at is not None:
        write_control_state(connection, row, {"paused_at": None})
    return find_job(connection, tenant_id, job_id)


def change_job(
    connection: sa.Connection, tenant_id: UUID, job_id: UUID | None, change: JobChange
) -> sa.Row[Any]:
    """Change a job's deadline, priority or schedule.

    Raises JobNotFoundError, JobNotOpenError, InvalidFieldError.
    """
    if change.priority is not None:
        check_priority(change.priority)
    if change.completion_window is not None and change.expires_at_s is not None:
        raise InvalidFieldError(
            "Give completion_window or expires_at, not both.", param="completion_window"
        )
    row = lock_open_job(connection, tenant_id, job_id, "change")
    values: dict[str, Any] = {}
    if change.priority is not None and change.priority != row.priority:
        values["priority"] = change.priority
    expires_at = _expires_at(row, change)
    if expires_at is not None and expires_at != row.expires_at:
        values |= {"expires_at": expires_at, "expected_late": False}
        is_late = row.expires_at - row.now < timedelta(seconds=NEAR_DEADLINE_S)
        if is_late and expires_at > row.expires_at:
            values["void_below"] = row.control_version + 1
        values["completion_window"] = change.completion_window or _window_to(expires_at, row)
    if change.not_before_s is not None:
        values["not_before"] = checked_not_before(change.not_before_s)
    if change.bulk_hours is not None:
        values["bulk_hours"] = checked_hours(change.bulk_hours)
    is_earlier = values.get("expires_at", row.expires_at) < row.expires_at
    if is_earlier or values.keys() & {"not_before", "bulk_hours"}:
        # A later deadline alone is always right: all items may be emitted, while hours are closed.
        _check_schedule(connection, row, values)
    if values:
        write_control_state(connection, row, values)
    return find_job(connection, tenant_id, job_id)


def _check_schedule(connection: sa.Connection, row: sa.Row[Any], values: Mapping[str, Any]) -> None:
    """Raise InvalidFieldError if no item of the changed job could be emitted before its end."""
    hours = sa.select(tenants.c.bulk_hours).where(tenants.c.id == row.tenant_id)
    check_schedule(
        now=row.now,
        expires_at=values.get("expires_at", row.expires_at),
        not_before=values.get("not_before", row.not_before),
        bulk_hours=values.get("bulk_hours", row.bulk_hours),
        tenant_hours=connection.scalar(hours),
    )


def _window_to(expires_at: datetime, row: sa.Row[Any]) -> str:
    """Return the completion window up to `expires_at`; at least the smallest valid window."""
    seconds = int(expires_at.timestamp()) - int(row.created_at.timestamp())
    return f"{max(seconds, WINDOW_S_MIN)}s"


def _expires_at(row: sa.Row[Any], change: JobChange) -> datetime | None:
    """Return the requested deadline. Raises InvalidFieldError."""
    created_at: datetime = row.created_at
    latest = created_at + timedelta(seconds=WINDOW_S_MAX)
    if change.completion_window is not None:
        param = "completion_window"
        window_s = window_seconds(change.completion_window)
        if window_s is None:
            raise InvalidFieldError(
                "Give a number with s, m, h or d, from 30s to 30d.", param=param
            )
        expires_at = created_at + timedelta(seconds=window_s)
    elif change.expires_at_s is not None:
        param = "expires_at"
        if not 0 < change.expires_at_s <= latest.timestamp():
            raise InvalidFieldError("Give at most 30 days after the creation.", param=param)
        expires_at = datetime.fromtimestamp(change.expires_at_s, UTC)
    else:
        return None
    if expires_at <= row.now:
        raise InvalidFieldError("The deadline is in the past.", param=param)
    return expires_at


OPEN_STATES: Final = frozenset({JobState.VALIDATING, JobState.IN_PROGRESS})
"""States in which a job can be changed, unless it is closed or its window has ended."""


def lock_open_job(
    connection: sa.Connection, tenant_id: UUID, job_id: UUID | None, verb: str
) -> sa.Row[Any]:
    """Lock a batch that can still be changed; the row also has the database's `now`.

    `verb` names the operation in the error message. Raises JobNotFoundError, JobNotOpenError.
    """
    row = lock_owned_job(connection, tenant_id, job_id, JobKind.BATCH)
    if row is None:
        raise JobNotFoundError
    if row.state not in OPEN_STATES or row.close_reason is not None or row.settled_at is not None:
        raise JobNotOpenError(f"Cannot {verb} a batch with status '{row.state}'.")
    if row.expires_at <= row.now:
        raise JobNotOpenError(f"Cannot {verb} a batch whose completion window has ended.")
    return row


def write_control_state(
    connection: sa.Connection, row: sa.Row[Any], values: dict[str, Any], *, jump: int = 1
) -> None:
    """Set columns of a locked job under the next control version, and publish the control record.

    `jump` is the version increment; more than 1 if the log may have versions unknown to Postgres.
    """
    version: int = row.control_version + jump
    changed = connection.execute(
        sa.update(jobs)
        .where(jobs.c.id == row.id)
        .values(control_version=version, **values)
        .returning(
            (jobs.c.paused_at.is_not(None) | jobs.c.quarantined_until.is_not(None)).label("waits"),
            jobs.c.priority,
            jobs.c.expires_at,
            jobs.c.void_below,
        )
    ).one()
    expires_at: datetime = changed.expires_at
    control = JobControl(
        job_id=row.id,
        version=version,
        paused=changed.waits,
        priority=changed.priority,
        deadline_s=expires_at.timestamp(),
        void_below=changed.void_below,
    )
    connection.execute(outbox_insert(CONTROL, control, job_id=row.id))
    connection.execute(NOTIFY_OUTBOX)
    connection.execute(NOTIFY_JOBS)


APPENDED_MAX: Final = 100
"""Limit of appended files per job: the ids of each are compared with those of all before it."""


def append_file(
    connection: sa.Connection, tenant_id: UUID, job_id: UUID | None, file_id: UUID | None
) -> sa.Row[Any]:
    """Append an input file to a job; its items count once the file is validated.

    Raises JobNotFoundError, JobNotOpenError, JobSealedError, UploadedFileNotFoundError,
    InvalidFieldError.
    """
    row = lock_open_job(connection, tenant_id, job_id, "append to")
    if row.sealed:
        raise JobSealedError
    file = find_input(connection, tenant_id, file_id)
    columns = job_inputs.c
    last = sa.select(sa.func.max(columns.number)).where(columns.job_id == row.id)
    number = (connection.scalar(last) or 0) + 1
    if number > APPENDED_MAX:
        raise InvalidFieldError(
            f"At most {APPENDED_MAX} files can be appended.", param="input_file_id"
        )
    connection.execute(
        job_inputs.insert().values(
            job_id=row.id,
            number=number,
            file_id=file.id,
            object_key=file.object_key,
            size_bytes=file.size_bytes,
        )
    )
    connection.execute(NOTIFY_JOBS)
    return find_job(connection, tenant_id, job_id)


def seal_job(connection: sa.Connection, tenant_id: UUID, job_id: UUID | None) -> sa.Row[Any]:
    """Seal a job; a sealed job does not change. Files appended before still count.

    Raises JobNotFoundError, JobNotOpenError.
    """
    find_job(connection, tenant_id, job_id)  # a job of another tenant must not be locked
    lock_counters(connection, job_id)
    row = lock_open_job(connection, tenant_id, job_id, "seal")
    if not row.sealed:
        connection.execute(
            sa.update(jobs)
            .where(jobs.c.id == row.id)
            .values(sealed=True, total_final=not has_unvalidated(connection, row.id))
        )
        settle_if_complete(connection, row.id)
        connection.execute(NOTIFY_OUTBOX)
        connection.execute(NOTIFY_JOBS)
    return find_job(connection, tenant_id, job_id)


def has_unvalidated(connection: sa.Connection, job_id: UUID) -> bool:
    """Whether an appended file has no verdict yet. The caller has locked the job."""
    columns = job_inputs.c
    waiting = sa.exists().where(columns.job_id == job_id, columns.state == "validating")
    return bool(connection.scalar(sa.select(waiting)))
