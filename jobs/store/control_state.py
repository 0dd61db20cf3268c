"""Control state of a job: locks the row, writes a new version and publishes its record."""

from datetime import datetime
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from core.states import JobKind, JobState
from jobs.errors import JobNotFoundError, JobNotOpenError
from jobs.store.outbox import NOTIFY_JOBS, NOTIFY_OUTBOX, outbox_insert
from jobs.tables.jobs import jobs
from topics.records.catalogue import CONTROL
from topics.records.records import JobControl

OPEN_STATES: Final = frozenset({JobState.VALIDATING, JobState.IN_PROGRESS})
"""States in which a job can be changed, unless it is closed or its window has ended."""


def lock_open_job(
    connection: sa.Connection, tenant_id: UUID, job_id: UUID | None, verb: str
) -> sa.Row[Any]:
    """Lock a batch that can still be changed; the row also has the database's `now`.

    `verb` names the operation in the error message. Raises JobNotFoundError, JobNotOpenError.
    """
    query: sa.Select[Any] = sa.select(*jobs.c, sa.func.now().label("now")).where(
        jobs.c.id == job_id, jobs.c.tenant_id == tenant_id, jobs.c.kind == JobKind.BATCH.value
    )
    query = query.where(jobs.c.deleted_at.is_(None))
    row = connection.execute(query.with_for_update(key_share=True)).one_or_none()
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
    version = next_control_version(row) + jump - 1
    changed = connection.execute(
        sa.update(jobs)
        .where(jobs.c.id == row.id)
        .values(control_version=version, **values)
        .returning(jobs.c.paused_at, jobs.c.priority, jobs.c.expires_at, jobs.c.void_below)
    ).one()
    expires_at: datetime = changed.expires_at
    control = JobControl(
        job_id=row.id,
        version=version,
        paused=changed.paused_at is not None,
        priority=changed.priority,
        deadline_s=expires_at.timestamp(),
        void_below=changed.void_below,
    )
    connection.execute(outbox_insert(CONTROL, control, job_id=row.id))
    connection.execute(NOTIFY_OUTBOX)
    connection.execute(NOTIFY_JOBS)


def next_control_version(row: sa.Row[Any]) -> int:
    """Return the next control version of a locked job."""
    version: int = row.control_version
    return version + 1
