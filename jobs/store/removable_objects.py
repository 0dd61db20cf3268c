"""Finds stored objects that can be removed: of files, of jobs, and orphans without a row.

The object of a file goes in three steps:

1. `find_removable_files` in one transaction;
2. delete the objects, in any order, any number of times;
3. `mark_removed` in another transaction. A crash before it repeats step 2, which is harmless.
"""

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, TypeAlias
from uuid import UUID

import sqlalchemy as sa

from core.object_names import ANSWERS, KEYS, ORDERS, REQUESTS, job_key_name, positions_key
from core.states import TERMINAL_STATES, JobKind
from jobs.store.files import is_pinned
from jobs.tables.files import files
from jobs.tables.idempotency import idempotency_keys
from jobs.tables.jobs import jobs
from storage.objects.object_store import ObjectStore
from storage.postgres.database_times import seconds
from tenancy.tenants import has_zero_retention

_MARGIN_S: Final = 600
"""Time after the expiry of a file: the transaction of a job created before it may still be open."""


def find_removable_files(
    connection: sa.Connection, *, limit: int, excluding: Collection[str] = ()
) -> list[sa.Row[Any]]:
    """Return id and key of deleted or expired files that no unfinished job reads.

    `excluding` holds object keys to leave out. No job can pin such a file again: a new job needs a
    visible file.
    """
    query = removal_query(limit)
    if excluding:
        query = query.where(
            files.c.object_key != sa.all_(sa.literal(list(excluding), sa.ARRAY(sa.Text)))
        )
    return list(connection.execute(query))


def mark_removed(connection: sa.Connection, file_ids: Sequence[UUID]) -> int:
    """Mark files as removed; return how many were not marked before.

    The rows stay, since jobs refer to them; the file names of zero-retention tenants are deleted.
    """
    marked = connection.execute(
        sa.update(files)
        .where(files.c.id.in_(file_ids), files.c.removed_at.is_(None))
        .values(
            removed_at=sa.func.now(),
            filename=sa.case((has_zero_retention(files.c.tenant_id), ""), else_=files.c.filename),
        )
    )
    return marked.rowcount


def find_removable_file(connection: sa.Connection, file_id: UUID) -> list[sa.Row[Any]]:
    """Return id and key of the deleted file with that id, unless an unfinished job reads it."""
    query = sa.select(files.c.id.label("file_id"), files.c.object_key).where(
        files.c.id == file_id,
        files.c.deleted_at.is_not(None),
        files.c.removed_at.is_(None),
        sa.not_(is_pinned()),
    )
    return list(connection.execute(query))


def removal_query(limit: int) -> sa.Select[Any]:
    """Return the query of removable files, those due for longest first."""
    return (
        sa.select(files.c.id.label("file_id"), files.c.object_key)
        .where(
            files.c.removed_at.is_(None),
            files.c.expires_at <= sa.func.now() - seconds(_MARGIN_S),
            sa.not_(is_pinned()),
        )
        .order_by(files.c.expires_at)
        .limit(limit)
    )


FindOrphans: TypeAlias = Callable[[sa.Connection, Collection[str]], set[str]]
"""Returns the orphans among object keys that are old enough never to be needed again."""

_UUID_HEX_DIGITS: Final = 32
_HEX: Final = re.compile(r"[0-9a-f]{32}")


def files_without_row(connection: sa.Connection, keys: Collection[str]) -> set[str]:
    """Return the keys without a file: from an upload without its row, or restored by the store.

    A store that was restored, or lost a removal, has objects whose rows are marked as removed.
    """
    known = sa.select(files.c.object_key).where(
        files.c.object_key.in_(keys), files.c.removed_at.is_(None)
    )
    return set(keys) - set(connection.scalars(known))


def outputs_of_ended_batches(connection: sa.Connection, keys: Collection[str]) -> set[str]:
    """Return the oversized outputs of batches that ended; their result files contain them."""
    by_job = group_keys_by_job(keys, ANSWERS)
    ended = sa.select(jobs.c.id).where(
        jobs.c.id.in_(by_job), jobs.c.kind == JobKind.BATCH, jobs.c.state.in_(TERMINAL_STATES)
    )
    return {key for job_id in connection.scalars(ended) for key in by_job[job_id]}


def outputs_without_job(connection: sa.Connection, keys: Collection[str]) -> set[str]:
    """Return the oversized outputs of calls whose API replica died before it read them."""
    return _keys_without_job(connection, group_keys_by_job(keys, ANSWERS), sa.true())


def inputs_without_open_request(connection: sa.Connection, keys: Collection[str]) -> set[str]:
    """Return the inputs of requests that ended, or whose row was never committed."""
    is_open = jobs.c.state.not_in(TERMINAL_STATES)
    return _keys_without_job(connection, group_keys_by_job(keys, REQUESTS), is_open)


def unneeded_orders(connection: sa.Connection, keys: Collection[str]) -> set[str]:
    """Return the orders of jobs that ended, of a validation that was slower than its job's end.

    Positions stay as long as the job: a restored database may need them (`restore_lines`).
    """
    positions = {key for key in keys if key == positions_key(key.rpartition("/")[0])}
    is_open = jobs.c.state.not_in(TERMINAL_STATES)
    is_kept = sa.and_(jobs.c.deleted_at.is_(None), sa.not_(jobs.c.zero_retention))
    others = group_keys_by_job(set(keys) - positions, ORDERS)
    return _keys_without_job(connection, others, is_open) | _keys_without_job(
        connection, group_keys_by_job(positions, ORDERS), sa.or_(is_open, is_kept)
    )


def job_keys_without_job(connection: sa.Connection, keys: Collection[str]) -> set[str]:
    """Return the data keys of deleted jobs, created by a process that missed the deletion."""
    is_kept = jobs.c.deleted_at.is_(None)
    return _keys_without_job(connection, group_keys_by_job(keys, KEYS), is_kept)


def _keys_without_job(
    connection: sa.Connection, by_job: dict[UUID, set[str]], where: sa.ColumnElement[bool]
) -> set[str]:
    found = connection.scalars(sa.select(jobs.c.id).where(jobs.c.id.in_(by_job), where))
    return {key for job_id in by_job.keys() - set(found) for key in by_job[job_id]}


def call_keys(connection: sa.Connection, keys: Collection[str]) -> set[str]:
    """Return all data keys of calls: a live process destroys its own keys much earlier."""
    del connection
    return set(keys)


def answers_without_idempotency_key(connection: sa.Connection, keys: Collection[str]) -> set[str]:
    """Return the stored answers that no idempotency key refers to."""
    body_key = idempotency_keys.c.body_key
    return set(keys) - set(connection.scalars(sa.select(body_key).where(body_key.in_(keys))))


def group_keys_by_job(keys: Collection[str], prefix: str) -> dict[UUID, set[str]]:
    """Group keys by the job id behind `prefix`; keys without one are left out."""
    by_job: dict[UUID, set[str]] = {}
    for key in keys:
        job_hex = key.removeprefix(prefix)[:_UUID_HEX_DIGITS]
        if _HEX.fullmatch(job_hex):
            by_job.setdefault(UUID(hex=job_hex), set()).add(key)
    return by_job


def destroy_job_key(store: ObjectStore, job_id: UUID) -> None:
    """Make the job's bodies on the log and in rows unreadable for ever; harmless when repeated.

    Call it once the job is a tombstone. A process that has cached the key forgets it within
    `KEY_CACHE_S_MAX`. Raises the errors of the object store.
    """
    store.delete(job_key_name(job_id))
