"""A batch deleted by its owner or by its age: in one transaction nothing of it shows any more.

    lock the job ─► tombstone ─► its files end ─► counters go ─► a row of what was deleted

Its rows and objects go afterwards, in slices (`results.retention.batch_removal`), and so do the
messages that name its items: with their deliveries there may be half a million. The counters go
first and at once: a results writer that reads a record of the job again, after any rewind, knows no
such job, so nothing comes back and nothing is billed twice. The ledger stays.
"""

from collections.abc import Collection
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from core.states import TERMINAL_STATES, JobKind
from jobs.errors import JobMissingError, JobRunningError
from jobs.tables.appended_files import job_inputs
from jobs.tables.files import files
from jobs.tables.jobs import jobs
from jobs.tables.progress import job_counters
from results.webhooks.tables import webhook_watches
from tenancy.deletions import Deletion, What, record_deletion

NAMED_FILES: Final = ("input_file_id", "output_file_id", "error_file_id")
"""Columns of `jobs` that name a file."""

_OUTCOMES: Final = ("succeeded", "failed", "cancelled", "expired")


def delete_batch(
    connection: sa.Connection, tenant_id: UUID, job_id: UUID | None, *, key_id: UUID
) -> dict[str, int]:
    """Delete a batch that has ended, as its owner asks with the API key `key_id`.

    Returns the counts of what it had. Raises JobMissingError, also for foreign and deleted ones,
    and JobRunningError.
    """
    row = connection.execute(
        sa.select(jobs)
        .where(
            jobs.c.id == job_id,
            jobs.c.tenant_id == tenant_id,
            jobs.c.kind == JobKind.BATCH.value,
            jobs.c.deleted_at.is_(None),
        )
        .with_for_update()
    ).one_or_none()
    if row is None:
        raise JobMissingError
    if row.state not in TERMINAL_STATES:
        raise JobRunningError(f"Cannot delete a batch with status '{row.state}': cancel it first.")
    return make_tombstone(connection, row, key_id=key_id)


def make_tombstone(
    connection: sa.Connection, row: sa.Row[Any], *, key_id: UUID | None
) -> dict[str, int]:
    """Make a tombstone of a terminal batch; `row` is of `jobs`, locked. No key: its age did it.

    Returns the counts of what it had.
    """
    job_id: UUID = row.id
    connection.execute(
        sa.update(jobs)
        .where(jobs.c.id == job_id)
        .values(
            deleted_at=sa.func.now(),
            removal_due_at=sa.func.now(),
            metadata=sa.null(),
            errors=sa.null(),
            traceparent="",
        )
    )
    file_count = _end_files(connection, row)
    outcomes = connection.execute(
        sa.delete(job_counters)
        .where(job_counters.c.job_id == job_id)
        .returning(*(job_counters.c[name] for name in _OUTCOMES))
    ).one_or_none()
    # Nobody watches it any more, so that no message is added while the old ones go.
    connection.execute(sa.delete(webhook_watches).where(webhook_watches.c.job_id == job_id))
    counts = {"items": 0 if outcomes is None else sum(outcomes), "files": file_count}
    deletion = Deletion(
        tenant_id=row.tenant_id,
        what=What.BATCH,
        subject_id=job_id,
        key_id=key_id,
        counts=counts,
    )
    record_deletion(connection, deletion)
    return counts


def files_of(connection: sa.Connection, row: sa.Row[Any]) -> list[UUID]:
    """Return the files that a job names; `row` is of `jobs`."""
    named = [getattr(row, column) for column in NAMED_FILES]
    appended = sa.select(job_inputs.c.file_id).where(job_inputs.c.job_id == row.id)
    return [*{file_id for file_id in (*named, *connection.scalars(appended)) if file_id}]


def _end_files(connection: sa.Connection, row: sa.Row[Any]) -> int:
    """End the files of a job that no other batch names; return how many had not ended."""
    mine = files_of(connection, row)
    # Locked in one order, and against a new job that reads one of them: see `find_input`.
    query = sa.select(files.c.id).where(files.c.id.in_(mine), files.c.deleted_at.is_(None))
    locked = connection.scalars(query.order_by(files.c.id).with_for_update()).all()
    alone = set(locked) - _named_by_others(connection, row.id, locked)
    ended = connection.execute(
        sa.update(files)
        .where(files.c.id.in_(alone))
        .values(
            deleted_at=sa.func.now(),
            expires_at=sa.func.least(files.c.expires_at, sa.func.now()),
        )
    )
    return ended.rowcount


def _named_by_others(
    connection: sa.Connection, job_id: UUID, file_ids: Collection[UUID]
) -> set[UUID]:
    """Return those of the files that a batch names which was not deleted."""
    found: set[UUID] = set()
    for column in NAMED_FILES:
        query = sa.select(jobs.c[column]).where(
            jobs.c[column].in_(file_ids), jobs.c.id != job_id, jobs.c.deleted_at.is_(None)
        )
        found |= set(connection.scalars(query))
    appended = (
        sa.select(job_inputs.c.file_id)
        .join(jobs, jobs.c.id == job_inputs.c.job_id)
        .where(job_inputs.c.file_id.in_(file_ids), jobs.c.id != job_id, jobs.c.deleted_at.is_(None))
    )
    return found | set(connection.scalars(appended))
