"""Finds and removes expired data: batches, single requests, files without expiry, tombstones.

Functions that change rows handle one slice in the caller's transaction. They skip rows locked by
others until the next run, except those of removed files, whose locks are short.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

import sqlalchemy as sa

from core.states import TERMINAL_STATES
from jobs.store.keyset_pages import position_of
from jobs.store.single_requests import JOB_DAY
from jobs.tables.files import files, job_inputs
from jobs.tables.jobs import job_counters, job_cursors, job_leases, jobs
from jobs.tables.retries import item_attempts, item_retries
from results.retention.deletion import NAMED_FILES
from storage.postgres.database_times import seconds
from storage.postgres.items import items, job_provenance
from tenancy.deletions import What, record_deletion
from tenancy.tables import tenants

SLICE: Final = 200
"""Batches that are found, or whose tombstones are removed, at once."""

REQUESTS_SLICE: Final = 500
FILES_SLICE: Final = 1000

# Literal, so that the planner can use the partial index on jobs that are not deleted.
_BATCH: Final = jobs.c.kind == sa.literal_column("'batch'")
_REQUEST: Final = jobs.c.kind == sa.literal_column("'request'")
_KEPT: Final = jobs.c.deleted_at.is_(None)
_ENDED: Final = jobs.c.state.in_([state.value for state in TERMINAL_STATES])
_ENDED_AT: Final = sa.func.coalesce(
    jobs.c.completed_at, jobs.c.failed_at, jobs.c.expired_at, jobs.c.cancelled_at
)

_DAY_HOURS: Final = 24


class OldRequest(NamedTuple):
    """A single request that is past its retention."""

    job_id: UUID
    tenant_id: UUID
    day: int
    body_key: str | None  # object of its answer, if it has one


def old_batches_query(days: float, limit: int = SLICE) -> sa.Select[Any]:
    """Return the query of batches that ended more than `days` ago, oldest first."""
    cutoff = days_ago(days)
    return (
        sa.select(jobs)
        .where(_BATCH, _KEPT, jobs.c.created_at < cutoff, _ENDED, cutoff > _ENDED_AT)
        .order_by(jobs.c.created_at)
        .limit(limit)
    )


def old_requests(connection: sa.Connection, *, days: float) -> list[OldRequest]:
    """Return a slice of terminal single requests that arrived more than `days` ago."""
    old = connection.execute(
        sa.select(jobs.c.id, jobs.c.tenant_id, JOB_DAY)
        .where(_REQUEST, _KEPT, jobs.c.created_at < days_ago(days), _ENDED)
        .order_by(jobs.c.created_at)
        .limit(REQUESTS_SLICE)
    ).all()
    body_keys: dict[UUID, str | None] = {}
    for arrived in {day for *_, day in old}:
        of_day = [job_id for job_id, _, day in old if day == arrived]
        found = sa.select(items.c.job_id, items.c.body_key).where(*_answers(arrived, of_day))
        body_keys |= {row.job_id: row.body_key for row in connection.execute(found)}
    return [OldRequest._make((*row, body_keys.get(row[0]))) for row in old]


def _answers(day: int, job_ids: Collection[UUID]) -> tuple[sa.ColumnElement[bool], ...]:
    return items.c.job_day == day, items.c.job_id.in_(job_ids), items.c.item_index == 0


def remove_requests(connection: sa.Connection, old: Sequence[OldRequest]) -> int:
    """Remove single requests, whose objects were deleted, with their rows; return how many.

    They leave no tombstones, since no list shows them. The ledger stays.
    """
    locked = sa.select(jobs.c.id).where(jobs.c.id.in_([one.job_id for one in old]), _ENDED)
    locked = locked.order_by(jobs.c.id).with_for_update(skip_locked=True)
    locked_ids = set(connection.scalars(locked))
    if not locked_ids:
        return 0
    owned = (job_counters, job_cursors, job_leases, item_attempts, item_retries, job_provenance)
    for table in owned:
        connection.execute(sa.delete(table).where(table.c.job_id.in_(locked_ids)))
    for day in {one.day for one in old}:
        of_day = [one.job_id for one in old if one.day == day and one.job_id in locked_ids]
        connection.execute(sa.delete(items).where(*_answers(day, of_day)))
    removed = connection.execute(sa.delete(jobs).where(jobs.c.id.in_(locked_ids))).rowcount
    by_tenant = Counter(one.tenant_id for one in old if one.job_id in locked_ids)
    for tenant_id, count in sorted(by_tenant.items()):
        counts = {"requests": count}
        record_deletion(connection, tenant_id=tenant_id, what=What.REQUESTS, counts=counts)
    return removed


def delete_old_files(connection: sa.Connection, *, days: float) -> int:
    """Delete files without expiry that were created more than `days` ago; return how many."""
    return delete_files(
        connection,
        sa.and_(
            files.c.expires_at.is_(None),
            files.c.deleted_at.is_(None),
            files.c.created_at < days_ago(days),
        ),
    )


def delete_files(connection: sa.Connection, is_due: sa.ColumnElement[bool]) -> int:
    """Delete a slice of the files that match `is_due`, oldest first; return how many."""
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
        counts = {"files": count}
        record_deletion(connection, tenant_id=tenant_id, what=What.FILE, counts=counts)
    return by_tenant.total()


def purge_tombstones(connection: sa.Connection, *, days: float) -> int:
    """Remove the rows of batches that were deleted more than `days` ago; return how many."""
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


def purge_files(
    connection: sa.Connection, *, days: float, after: sa.Row[Any] | None
) -> tuple[int, sa.Row[Any] | None]:
    """Delete rows of files whose objects were removed more than `days` ago, if no job names them.

    Examines the slice behind the row `after`. Returns how many were deleted, and the last row of a
    full slice or None.
    """
    query = removed_files_query(days, after)
    found = connection.execute(query).all()
    if not found:
        return 0, None
    named = sa.or_(
        *(
            sa.exists(sa.select(1).where(jobs.c[name] == files.c.id).offset(0))
            for name in NAMED_FILES
        ),
        sa.exists(sa.select(1).where(job_inputs.c.file_id == files.c.id).offset(0)),
    )
    deleted = connection.execute(
        sa.delete(files).where(files.c.id.in_([row.id for row in found]), sa.not_(named))
    )
    return deleted.rowcount, found[-1] if len(found) == FILES_SLICE else None


def removed_files_query(days: float, after: sa.Row[Any] | None) -> sa.Select[Any]:
    """Return the query of a slice of removed files, earliest removal first."""
    key = (files.c.removed_at, files.c.id)
    query = sa.select(*key).where(files.c.removed_at < days_ago(days))
    if after is not None:
        query = query.where(sa.tuple_(*key) > position_of(after, *key))
    return query.order_by(*key).limit(FILES_SLICE)


def days_ago(days: float) -> sa.ColumnElement[Any]:
    """Return the SQL expression of the time `days` ago by the database's clock."""
    return sa.func.now() - seconds(sa.cast(days * 86_400, sa.Double))


def ended_query(hours: float) -> sa.Select[Any]:
    """Return the query of a slice of zero-retention batches that ended more than `hours` ago."""
    return old_batches_query(hours / _DAY_HOURS).where(jobs.c.zero_retention)


def delete_unused_files(connection: sa.Connection, *, hours: float) -> int:
    """Delete a slice of zero-retention files older than `hours` that no batch names.

    Returns how many. Files uploaded before their tenant became zero-retention are kept.
    """
    has_zero_retention = sa.select(1).where(
        tenants.c.id == files.c.tenant_id,
        tenants.c.zero_retention,
        sa.or_(
            tenants.c.zero_retention_since.is_(None),
            tenants.c.zero_retention_since <= files.c.created_at,
        ),
    )
    named = [
        sa.exists(sa.select(1).where(jobs.c[column] == files.c.id, jobs.c.deleted_at.is_(None)))
        for column in NAMED_FILES
    ]
    appended = (
        sa.select(1)
        .join(jobs, jobs.c.id == job_inputs.c.job_id)
        .where(job_inputs.c.file_id == files.c.id, jobs.c.deleted_at.is_(None))
    )
    return delete_files(
        connection,
        sa.and_(
            sa.exists(has_zero_retention),
            files.c.deleted_at.is_(None),
            files.c.created_at < days_ago(hours / _DAY_HOURS),
            sa.not_(sa.or_(*named, sa.exists(appended))),
        ),
    )
