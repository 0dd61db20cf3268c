"""The expansion cursor of a job: how far its files were expanded. Its updates are fenced."""

from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

import sqlalchemy as sa

from core.errors import LeaseLostError
from jobs.leasing import leases
from jobs.leasing.leases import Lease
from jobs.tables.jobs import job_cursors


@dataclass(frozen=True, slots=True)
class ExpansionCursor:
    """How far the files of a job were expanded: the log has acknowledged everything before it.

    Offset and lines count in the file that holds the previous item.
    """

    byte_offset: int = 0
    line_number: int = 0  # lines before the cursor, including blank ones
    item_index: int = 0  # items before the cursor
    copy_count: int = 0  # copies among them: they were never emitted


def fence_cursor(connection: sa.Connection, lease: Lease, version: int) -> None:
    """Stop records below control version `version` from moving the cursor.

    Call it before looking for items that are missing below the cursor. Raises LeaseLostError.
    """
    leases.lock_lease(connection, lease)
    connection.execute(
        sa.update(job_cursors)
        .where(job_cursors.c.job_id == lease.job_id, job_cursors.c.fence < version)
        .values(fence=version)
    )


def restart_stall_wait(connection: sa.Connection, job_ids: Collection[UUID]) -> None:
    """Restart the time after which jobs count as stalled. The caller has locked their cursors."""
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
    """Move the cursor past acknowledged items whose records carry control version `version`.

    Returns False if the job was paused and resumed in the meantime: the items missing below the
    cursor were re-emitted, so the cursor stays and these items are emitted again from it. While the
    job is still paused the cursor moves, and the resume re-emits the void items below it. Raises
    LeaseLostError.
    """
    leases.lock_lease(connection, lease)
    columns = job_cursors.c
    moved = connection.execute(
        sa.update(job_cursors)
        .where(
            columns.job_id == lease.job_id,
            columns.item_index == before.item_index,
            columns.fence <= version,
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
    current = connection.scalar(sa.select(columns.fence).where(columns.job_id == lease.job_id))
    if current is not None and current > version:
        return False
    raise LeaseLostError(job_id=lease.job_id, item_index=before.item_index)
