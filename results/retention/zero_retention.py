"""What tenants that retain nothing still have: it goes soon after the end of its batch.

Each function does one slice in the caller's transaction; locked rows are left to the next turn.
"""

from typing import Final

import sqlalchemy as sa

from jobs.files_tables import files
from jobs.inputs_tables import job_inputs
from jobs.tables import jobs
from results.retention.ages import SLICE, before, end_files, old_batches_query
from results.retention.deletion import NAMED_FILES, bury_batch
from tenancy.tables import tenants

_DAY_HOURS: Final = 24


def bury_ended(connection: sa.Connection, *, hours: float) -> int:
    """Make tombstones of their batches that ended more than `hours` ago; return how many."""
    query = old_batches_query(hours / _DAY_HOURS, SLICE).where(jobs.c.zero_retention)
    old = connection.execute(query.with_for_update(skip_locked=True)).all()
    for row in old:
        bury_batch(connection, row, key_id=None)
    return len(old)


def end_unused_files(connection: sa.Connection, *, hours: float) -> int:
    """End their files of more than `hours` ago that no batch names; return how many."""
    named = [
        sa.exists(sa.select(1).where(jobs.c[column] == files.c.id, jobs.c.deleted_at.is_(None)))
        for column in NAMED_FILES
    ]
    appended = (
        sa.select(1)
        .join(jobs, jobs.c.id == job_inputs.c.job_id)
        .where(job_inputs.c.file_id == files.c.id, jobs.c.deleted_at.is_(None))
    )
    return end_files(
        connection,
        sa.and_(
            files.c.tenant_id.in_(sa.select(tenants.c.id).where(tenants.c.zero_retention)),
            files.c.deleted_at.is_(None),
            files.c.created_at < before(hours / _DAY_HOURS),
            sa.not_(sa.or_(*named, sa.exists(appended))),
        ),
    )
