"""Controls of a running job: pause, resume, deadline, priority. One transaction each.

A pause makes records on the log void whose items did not run yet; after a resume intake re-emits
these items from the input file. So a paused job occupies neither the log nor a batcher.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from jobs.errors import InvalidFieldError
from jobs.store.batches import find_job
from jobs.store.control_state import lock_open_job, next_control_version, write_control_state
from jobs.store.job_options import WINDOW_S_MAX, WINDOW_S_MIN, check_priority, window_seconds

NEAR_DEADLINE_S: Final = 60.0
"""An extension this close to the deadline counts as a pause and a resume: items may already be
dropped as expired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChange:
    """Requested changes; None: no change."""

    completion_window: str | None = None  # from the job's creation
    expires_at_s: int | None = None  # seconds since the epoch
    priority: int | None = None


def pause_job(connection: sa.Connection, tenant_id: UUID, job_id: UUID | None) -> sa.Row[Any]:
    """Pause a job; a paused job does not change. Its completion window continues.

    Raises JobNotFoundError, JobNotOpenError.
    """
    row = lock_open_job(connection, tenant_id, job_id, "pause")
    if row.paused_at is None:
        values = {"paused_at": sa.func.now(), "void_below": next_control_version(row)}
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
    """Change a job's deadline or priority.

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
        values["expires_at"] = expires_at
        is_late = row.expires_at - row.now < timedelta(seconds=NEAR_DEADLINE_S)
        if is_late and expires_at > row.expires_at:
            values["void_below"] = next_control_version(row)
        values["completion_window"] = change.completion_window or _window_to(expires_at, row)
    if values:
        write_control_state(connection, row, values)
    return find_job(connection, tenant_id, job_id)


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
