"""Expired batches and files of zero-retention tenants."""

from typing import Any, Final

import sqlalchemy as sa

from jobs.tables.appended_files import job_inputs
from jobs.tables.files import files
from jobs.tables.jobs import jobs
from results.retention.deletion import NAMED_FILES
from results.retention.expired_data import days_ago, delete_files, old_batches_query
from tenancy.tables import tenants

_DAY_HOURS: Final = 24


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
