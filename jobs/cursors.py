"""How far a job's files were expanded, and the fenced move of it."""

from dataclasses import dataclass

import sqlalchemy as sa

from core.errors import LeaseLostError
from jobs import leases
from jobs.leases import Lease
from jobs.tables import job_cursors, jobs


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far the files of a job were expanded: everything before was acknowledged.

    Offset and lines are those of the file that holds the item before.
    """

    byte_offset: int = 0
    line_number: int = 0  # lines before, blank ones counted
    item_index: int = 0  # items before


def advance(
    connection: sa.Connection, lease: Lease, before: Cursor, after: Cursor, *, version: int = 0
) -> bool:
    """Move the cursor over items that were acknowledged; `version` is what their records say.

    False when a pause has made these records void meanwhile: the cursor stands where it stood, and
    they are emitted again from there. Raises LeaseLostError.
    """
    leases.require(connection, lease)
    void_below = sa.select(jobs.c.void_below).where(jobs.c.id == lease.job_id).scalar_subquery()
    moved = connection.execute(
        sa.update(job_cursors)
        .where(
            job_cursors.c.job_id == lease.job_id,
            job_cursors.c.item_index == before.item_index,
            void_below <= version,
        )
        .values(
            byte_offset=after.byte_offset,
            line_number=after.line_number,
            item_index=after.item_index,
        )
    )
    if moved.rowcount == 1:
        return True
    if (connection.scalar(sa.select(void_below)) or 0) > version:
        return False
    raise LeaseLostError(job_id=lease.job_id, item_index=before.item_index)
