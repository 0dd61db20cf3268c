"""Which objects nobody needs any more, and remembering that they are gone.

1. `find_removable_files` in one transaction;
2. delete the objects, in any order, as often as need be;
3. `mark_removed` in another. A crash before it repeats step 2, which is harmless.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from jobs.store.files import is_pinned
from jobs.tables.files import files
from storage.postgres.intervals import seconds
from tenancy.tenants import keeps_nothing

_MARGIN_S: Final = 600
"""Time past a file's life before it counts: a job created just before may not be committed yet."""


@dataclass(frozen=True, slots=True)
class RemovableFile:
    """A file whose object may go."""

    file_id: UUID
    object_key: str


def find_removable_files(
    connection: sa.Connection, *, limit: int, excluding: Collection[str] = ()
) -> list[RemovableFile]:
    """Return files that were deleted or have expired and that no unfinished job reads.

    They can never be pinned again: a new job needs a file that shows. Those whose objects are `excluding`
    are left out.
    """
    query = removal_query(limit)
    if excluding:
        query = query.where(
            files.c.object_key != sa.all_(sa.literal(list(excluding), sa.ARRAY(sa.Text)))
        )
    return [RemovableFile(row.id, row.object_key) for row in connection.execute(query)]


def mark_removed(connection: sa.Connection, file_ids: Sequence[UUID]) -> int:
    """Remember that the objects are gone; the rows stay, since jobs name them.

    Their names go at once where the tenant retains nothing. Returns how many of them nobody had
    marked before.
    """
    marked = connection.execute(
        sa.update(files)
        .where(files.c.id.in_(file_ids), files.c.removed_at.is_(None))
        .values(
            removed_at=sa.func.now(),
            filename=sa.case((keeps_nothing(files.c.tenant_id), ""), else_=files.c.filename),
        )
    )
    return marked.rowcount


def find_removable_file(connection: sa.Connection, file_id: UUID) -> list[RemovableFile]:
    """Return the deleted file of that id when no unfinished job reads it; see `find_removable_files`."""
    query = sa.select(files.c.id, files.c.object_key).where(
        files.c.id == file_id,
        files.c.deleted_at.is_not(None),
        files.c.removed_at.is_(None),
        sa.not_(is_pinned()),
    )
    return [RemovableFile(row.id, row.object_key) for row in connection.execute(query)]


def removal_query(limit: int) -> sa.Select[Any]:
    """Return the query of removable files, longest due first."""
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
