"""What is old enough to go: batches, single requests, files without an end, tombstones.

What changes rows does one slice in the caller's transaction. Rows that somebody else has locked are
left to the next turn, but for those of removed files: nobody keeps them long.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

import sqlalchemy as sa

from core.states import TERMINAL_STATES
from jobs.store.single_requests import JOB_DAY
from jobs.tables.appended_files import job_inputs
from jobs.tables.files import files
from jobs.tables.jobs import jobs
from jobs.tables.progress import job_counters, job_cursors, job_leases
from jobs.tables.retries import item_attempts, item_retries
from storage.postgres.intervals import seconds
from storage.postgres.items import items
from tenancy.deletions import Deletion, What, record_deletion

SLICE: Final = 200
"""Batches that are looked up, or whose last rows go, at once."""

REQUESTS_SLICE: Final = 500
FILES_SLICE: Final = 1000

# Literal, so that Postgres sees that the partial index on kept jobs fits.
_BATCH: Final = jobs.c.kind == sa.literal_column("'batch'")
_REQUEST: Final = jobs.c.kind == sa.literal_column("'request'")
_KEPT: Final = jobs.c.deleted_at.is_(None)
_ENDED: Final = jobs.c.state.in_([state.value for state in TERMINAL_STATES])
_ENDED_AT: Final = sa.func.coalesce(
    jobs.c.completed_at, jobs.c.failed_at, jobs.c.expired_at, jobs.c.cancelled_at
)


class OldRequest(NamedTuple):
    """A single request that is past its time."""

    job_id: UUID
    tenant_id: UUID
    day: int
    body_key: str | None  # object of its answer


def old_batches_query(days: float, limit: int = SLICE) -> sa.Select[Any]:
    """Return the query of batches that ended more than `days` ago, the first created first."""
    cut = days_ago(days)
    return (
        sa.select(jobs)
        .where(_BATCH, _KEPT, jobs.c.created_at < cut, _ENDED, cut > _ENDED_AT)
        .order_by(jobs.c.created_at)
        .limit(limit)
    )


def old_requests(connection: sa.Connection, *, days: float) -> list[OldRequest]:
    """Return a slice of single requests that came more than `days` ago and have ended."""
    old = (
        sa.select(jobs.c.id, jobs.c.tenant_id, JOB_DAY.label("day"))
        .where(_REQUEST, _KEPT, jobs.c.created_at < days_ago(days), _ENDED)
        .order_by(jobs.c.created_at)
        .limit(REQUESTS_SLICE)
        .subquery()
    )
    body_key = (
        sa.select(items.c.body_key)
        .where(items.c.job_day == old.c.day, items.c.job_id == old.c.id, items.c.item_index == 0)
        .scalar_subquery()
    )
    return [OldRequest._make(row) for row in connection.execute(sa.select(*old.c, body_key))]


def remove_requests(connection: sa.Connection, old: Sequence[OldRequest]) -> int:
    """Remove single requests whose objects are gone, with their rows; return how many.

    No tombstone is left: nothing lists them. The ledger stays.
    """
    locked = sa.select(jobs.c.id).where(jobs.c.id.in_([one.job_id for one in old]), _ENDED)
    locked = locked.order_by(jobs.c.id).with_for_update(skip_locked=True)
    going = set(connection.scalars(locked))
    if not going:
        return 0
    for table in (job_counters, job_cursors, job_leases, item_attempts, item_retries):
        connection.execute(sa.delete(table).where(table.c.job_id.in_(going)))
    for day in {one.day for one in old}:
        its = [one.job_id for one in old if one.day == day and one.job_id in going]
        where = (items.c.job_day == day, items.c.job_id.in_(its), items.c.item_index == 0)
        connection.execute(sa.delete(items).where(*where))
    removed = connection.execute(sa.delete(jobs).where(jobs.c.id.in_(going))).rowcount
    by_tenant = Counter(one.tenant_id for one in old if one.job_id in going)
    for tenant_id, count in sorted(by_tenant.items()):
        deletion = Deletion(tenant_id=tenant_id, what=What.REQUESTS, counts={"requests": count})
        record_deletion(connection, deletion)
    return removed


def end_old_files(connection: sa.Connection, *, days: float) -> int:
    """Delete files without an end that were created more than `days` ago; return how many."""
    return end_files(
        connection,
        sa.and_(
            files.c.expires_at.is_(None),
            files.c.deleted_at.is_(None),
            files.c.created_at < days_ago(days),
        ),
    )


def end_files(connection: sa.Connection, is_due: sa.ColumnElement[bool]) -> int:
    """Delete a slice of the files that are due, the oldest first; return how many."""
    due = (
        sa.select(files.c.id)
        .where(is_due)
        .order_by(files.c.created_at)
        .limit(FILES_SLICE)
        .with_for_update(skip_locked=True)
    )
    ended = connection.execute(
        sa.update(files)
        .where(files.c.id.in_(due))
        .values(deleted_at=sa.func.now(), expires_at=sa.func.now())
        .returning(files.c.tenant_id)
    )
    by_tenant = Counter(ended.scalars())
    for tenant_id, count in sorted(by_tenant.items()):
        record_deletion(
            connection, Deletion(tenant_id=tenant_id, what=What.FILE, counts={"files": count})
        )
    return by_tenant.total()


def purge_tombstones(connection: sa.Connection, *, days: float) -> int:
    """Remove the last row of batches that were deleted more than `days` ago; return how many."""
    old = connection.scalars(
        sa.select(jobs.c.id)
        .where(jobs.c.deleted_at < days_ago(days), jobs.c.removal_due_at.is_(None))
        .order_by(jobs.c.deleted_at)
        .limit(SLICE)
        .with_for_update(skip_locked=True)
    ).all()
    if not old:
        return 0
    for table in (job_cursors, job_leases, job_counters, job_inputs):
        connection.execute(sa.delete(table).where(table.c.job_id.in_(old)))
    return connection.execute(sa.delete(jobs).where(jobs.c.id.in_(old))).rowcount


class FilePosition(NamedTuple):
    """How far a look at the rows of removed files has come."""

    removed_at: object
    file_id: UUID


def purge_files(
    connection: sa.Connection, *, days: float, after: FilePosition | None
) -> tuple[int, FilePosition | None]:
    """Look at a slice of rows of files whose objects went more than `days` ago.

    Those that no job names any more go. Returns how many, and where to go on; None: at the end.
    """
    query = removed_files_query(days, after)
    looked = connection.execute(query).all()
    if not looked:
        return 0, None
    named = sa.or_(
        *(
            sa.exists(sa.select(1).where(column == files.c.id).offset(0))
            for column in (jobs.c.input_file_id, jobs.c.output_file_id, jobs.c.error_file_id)
        ),
        sa.exists(sa.select(1).where(job_inputs.c.file_id == files.c.id).offset(0)),
    )
    gone = connection.execute(
        sa.delete(files).where(files.c.id.in_([row.id for row in looked]), sa.not_(named))
    )
    last = looked[-1]
    place = FilePosition(last.removed_at, last.id) if len(looked) == FILES_SLICE else None
    return gone.rowcount, place


def removed_files_query(days: float, after: FilePosition | None) -> sa.Select[Any]:
    """Return the query of a slice of removed files, the first removed first."""
    query = sa.select(files.c.removed_at, files.c.id).where(files.c.removed_at < days_ago(days))
    if after is not None:
        place = sa.tuple_(
            sa.literal(after.removed_at, files.c.removed_at.type),
            sa.literal(after.file_id, files.c.id.type),
        )
        query = query.where(sa.tuple_(files.c.removed_at, files.c.id) > place)
    return query.order_by(files.c.removed_at, files.c.id).limit(FILES_SLICE)


def days_ago(days: float) -> sa.ColumnElement[Any]:
    """Return the moment `days` ago by the database's time."""
    return sa.func.now() - seconds(sa.cast(days * 86_400, sa.Double))
