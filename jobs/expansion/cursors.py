"""How far a job's files were expanded, and the fenced move of it."""

from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

import sqlalchemy as sa

from core.errors import LeaseLostError
from jobs.leasing import leases
from jobs.leasing.leases import Lease
from jobs.tables.progress import job_cursors


@dataclass(frozen=True, slots=True)
class ExpansionCursor:
    """How far the files of a job were expanded: everything before was acknowledged.

    Offset and lines are those of the file that holds the item before.
    """

    byte_offset: int = 0
    line_number: int = 0  # lines before, blank ones counted
    item_index: int = 0  # items before
    copy_count: int = 0  # of those, copies of others: they were never emitted


def fence_cursor(connection: sa.Connection, lease: Lease, version: int) -> None:
    """Let records below `version` move the cursor no more, before what it lacks is looked for.

    Raises LeaseLostError.
    """
    leases.lock_lease(connection, lease)
    connection.execute(
        sa.update(job_cursors)
        .where(job_cursors.c.job_id == lease.job_id, job_cursors.c.fence < version)
        .values(fence=version)
    )


def restart_stall_wait(connection: sa.Connection, job_ids: Collection[UUID]) -> None:
    """Begin anew the wait after which jobs count as standing still; their cursors are locked."""
    connection.execute(
        sa.update(job_cursors)
        .where(job_cursors.c.job_id.in_(job_ids))
        .values(repaired_at=sa.func.now())
    )


def advance_cursor(
    connection: sa.Connection,
    lease: Lease,
    before: ExpansionCursor,
    after: ExpansionCursor,
    *,
    version: int = 0,
) -> bool:
    """Move the cursor over items that were acknowledged; `version` is what their records say.

    False when the job was paused meanwhile and goes on already: what is missing below the cursor
    was emitted anew, so it stands where it stood, and these are emitted again from there. While the
    job rests the cursor moves: what is void below it is emitted at the resume. Raises
    LeaseLostError.
    """
    leases.lock_lease(connection, lease)
    its = job_cursors.c
    moved = connection.execute(
        sa.update(job_cursors)
        .where(
            its.job_id == lease.job_id,
            its.item_index == before.item_index,
            its.fence <= version,
        )
        .values(
            byte_offset=after.byte_offset,
            line_number=after.line_number,
            item_index=after.item_index,
            copy_count=after.copy_count,
        )
    )
    if moved.rowcount == 1:
        return True
    fence_cursor = connection.scalar(sa.select(its.fence).where(its.job_id == lease.job_id))
    if fence_cursor is not None and fence_cursor > version:
        return False
    raise LeaseLostError(job_id=lease.job_id, item_index=before.item_index)
