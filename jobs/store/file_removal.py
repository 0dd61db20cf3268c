"""Finds the files whose objects can be removed, and marks them as removed.

1. `find_removable_files` in one transaction;
2. delete the objects, in any order, any number of times;
3. `mark_removed` in another transaction. A crash before it repeats step 2, which is harmless.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from jobs.store.files import is_pinned
from jobs.tables.files import files
from storage.postgres.intervals import seconds
from tenancy.tenants import has_zero_retention

_MARGIN_S: Final = 600
"""Time after the expiry of a file: the transaction of a job created before it may still be open."""


@dataclass(frozen=True, slots=True)
class RemovableFile:
    """A file whose object can be removed."""

    file_id: UUID
    object_key: str


def find_removable_files(
    connection: sa.Connection, *, limit: int, excluding: Collection[str] = ()
) -> list[RemovableFile]:
    """Return deleted or expired files that no unfinished job reads, except those in `excluding`.

    `excluding` holds object keys. No job can pin such a file again: a new job needs a visible file.
    """
    query = removal_query(limit)
    if excluding:
        query = query.where(
            files.c.object_key != sa.all_(sa.literal(list(excluding), sa.ARRAY(sa.Text)))
        )
    return [RemovableFile(row.id, row.object_key) for row in connection.execute(query)]


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


def find_removable_file(connection: sa.Connection, file_id: UUID) -> list[RemovableFile]:
    """Return the deleted file with that id, unless an unfinished job reads it."""
    query = sa.select(files.c.id, files.c.object_key).where(
        files.c.id == file_id,
        files.c.deleted_at.is_not(None),
        files.c.removed_at.is_(None),
        sa.not_(is_pinned()),
    )
    return [RemovableFile(row.id, row.object_key) for row in connection.execute(query)]


def removal_query(limit: int) -> sa.Select[Any]:
    """Return the query of removable files, those due for longest first."""
    return (
        sa.select(files.c.id, files.c.object_key)
        .where(
            files.c.removed_at.is_(None),
            files.c.expires_at <= sa.func.now() - seconds(_MARGIN_S),
            sa.not_(is_pinned()),
        )
        .order_by(files.c.expires_at)
        .limit(limit)
    )
