"""What owners change of a running job: pause, resume, deadline, priority. One transaction each.

A pause makes void what is on the log and did not run yet; a resume lets intake emit it again, from
the input file. So a paused job holds no place on the log and in no batcher, however long it rests.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from jobs.errors import InvalidFieldError
from jobs.store.batches import find_job
from jobs.store.completion_window import WINDOW_S_MAX, WINDOW_S_MIN, window_seconds
from jobs.store.control_state import lock_open_job, next_control_version, write_control_state
from jobs.store.job_options import check_priority

NEAR_DEADLINE_S: Final = 60.0
"""An extension so late counts as a pause and a resume: items may have been dropped as expired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChange:
    """What to change; None leaves it as it is."""

    completion_window: str | None = None  # from the job's creation
    expires_at_s: int | None = None  # seconds since the epoch
    priority: int | None = None


def pause_job(connection: sa.Connection, tenant_id: UUID, job_id: UUID | None) -> sa.Row[Any]:
    """Pause a job; one that is paused stays as it is. Its completion window goes on.

    Raises JobMissingError, JobNotOpenError.
    """
    row = lock_open_job(connection, tenant_id, job_id, "pause")
    if row.paused_at is None:
        values = {"paused_at": sa.func.now(), "void_below": next_control_version(row)}
        write_control_state(connection, row, values)
    return find_job(connection, tenant_id, job_id)


def resume_job(connection: sa.Connection, tenant_id: UUID, job_id: UUID | None) -> sa.Row[Any]:
    """Let a paused job go on; one that is not paused stays as it is.

    Raises JobMissingError, JobNotOpenError.
    """
    row = lock_open_job(connection, tenant_id, job_id, "resume")
    if row.paused_at is not None:
        write_control_state(connection, row, {"paused_at": None})
    return find_job(connection, tenant_id, job_id)


def change_job(
    connection: sa.Connection, tenant_id: UUID, job_id: UUID | None, wanted: JobChange
) -> sa.Row[Any]:
    """Change a job's deadline or priority.

    Raises JobMissingError, JobNotOpenError, InvalidFieldError.
    """
    if wanted.priority is not None:
        check_priority(wanted.priority)
    if wanted.completion_window is not None and wanted.expires_at_s is not None:
        raise InvalidFieldError("Give one of the two.", param="completion_window")
    row = lock_open_job(connection, tenant_id, job_id, "change")
    values: dict[str, Any] = {}
    if wanted.priority is not None and wanted.priority != row.priority:
        values["priority"] = wanted.priority
    expires_at = _expires_at(row, wanted)
    if expires_at is not None and expires_at != row.expires_at:
        values["expires_at"] = expires_at
        is_late = row.expires_at - row.now < timedelta(seconds=NEAR_DEADLINE_S)
        if is_late and expires_at > row.expires_at:
            values["void_below"] = next_control_version(row)
        values["completion_window"] = wanted.completion_window or _window_to(expires_at, row)
    if values:
        write_control_state(connection, row, values)
    return find_job(connection, tenant_id, job_id)


def _window_to(expires_at: datetime, row: sa.Row[Any]) -> str:
    """Return the window that says the same; never less than one that a new job could have."""
    seconds = int(expires_at.timestamp()) - int(row.created_at.timestamp())
    return f"{max(seconds, WINDOW_S_MIN)}s"


def _expires_at(row: sa.Row[Any], wanted: JobChange) -> datetime | None:
    """Return the deadline that is asked for. Raises InvalidFieldError."""
    created_at: datetime = row.created_at
    latest = created_at + timedelta(seconds=WINDOW_S_MAX)
    if wanted.completion_window is not None:
        param = "completion_window"
        window_s = window_seconds(wanted.completion_window)
        if window_s is None:
            raise InvalidFieldError(
                "Give a number with s, m, h or d, from 30s to 30d.", param=param
            )
        expires_at = created_at + timedelta(seconds=window_s)
    elif wanted.expires_at_s is not None:
        param = "expires_at"
        if not 0 < wanted.expires_at_s <= latest.timestamp():
            raise InvalidFieldError("Give at most 30 days after the creation.", param=param)
        expires_at = datetime.fromtimestamp(wanted.expires_at_s, UTC)
    else:
        return None
    if expires_at <= row.now:
        raise InvalidFieldError("This moment is past.", param=param)
    return expires_at
