"""Quarantine of a tenant on a pool: its batches there wait after one exceeded its crash budget.

The results writer starts it, in the transaction that closes the job. It ends at a time, or when an
operator ends it. Jobs that are created meanwhile are accepted and wait.
"""

from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from core.ids import JOB, QUARANTINE, new_uuid, public_id
from jobs.tables.jobs import jobs
from jobs.tables.quarantines import tenant_quarantines
from storage.postgres.database_times import seconds
from tenancy.audit_log import SYSTEM, Action
from tenancy.installation_log import CLI_OPERATOR, Operator, record_tenant_event
from tenancy.tables import tenants

_COLUMNS: Final = tenant_quarantines.c

IS_ACTIVE: Final = _COLUMNS.ends_at > sa.func.now()
"""Of a quarantine: its time is not over."""

OF_JOB: Final = sa.and_(_COLUMNS.tenant_id == jobs.c.tenant_id, _COLUMNS.pool == jobs.c.pool)
"""Of a quarantine and a job: the job waits for it."""


def start_quarantine(connection: sa.Connection, job: sa.Row[Any], duration_s: float) -> None:
    """Start, or prolong, the quarantine of a job's tenant on the job's pool.

    Call it last in the transaction that closes `job`, a row of `jobs`: it writes the audit log.
    """
    values = {
        "job_id": job.id,
        "began_at": sa.func.now(),
        "ends_at": sa.func.now() + seconds(duration_s),
    }
    started = connection.execute(
        insert(tenant_quarantines)
        .values(id=new_uuid(), tenant_id=job.tenant_id, pool=job.pool, **values)
        .on_conflict_do_update(index_elements=[_COLUMNS.tenant_id, _COLUMNS.pool], set_=values)
        .returning(_COLUMNS.id, _COLUMNS.ends_at)
    ).one()
    record_tenant_event(
        connection,
        Operator(SYSTEM),
        job.tenant_id,
        Action.QUARANTINE_STARTED,
        public_id(QUARANTINE, started.id),
        {
            "pool": job.pool,
            "batch": public_id(JOB, job.id),
            "ends_at": int(started.ends_at.timestamp()),
        },
    )


def end_quarantine(
    connection: sa.Connection, quarantine_id: UUID, operator: Operator = CLI_OPERATOR
) -> sa.Row[Any] | None:
    """End a quarantine and return it; None if no active one has this id.

    Intake lets the jobs go on within seconds.
    """
    ended = connection.execute(_active().where(_COLUMNS.id == quarantine_id)).one_or_none()
    delete = sa.delete(tenant_quarantines).where(_COLUMNS.id == quarantine_id)
    if ended is None or not connection.execute(delete).rowcount:
        return None
    record_tenant_event(
        connection,
        operator,
        ended.tenant_id,
        Action.QUARANTINE_ENDED,
        public_id(QUARANTINE, quarantine_id),
        {"pool": ended.pool, "batch": public_id(JOB, ended.job_id)},
    )
    return ended


def list_quarantines(connection: sa.Connection) -> list[sa.Row[Any]]:
    """Return the active quarantines with the names of their tenants, by id."""
    return list(connection.execute(_active().order_by(_COLUMNS.id)))


def _active() -> sa.Select[Any]:
    query: sa.Select[Any] = sa.select(tenant_quarantines, tenants.c.name.label("tenant"))
    return query.join(tenants, tenants.c.id == _COLUMNS.tenant_id).where(IS_ACTIVE)


def quarantine_end(tenant_id: UUID, pool: str) -> sa.ScalarSelect[Any]:
    """Return the expression of when the quarantine of a tenant on a pool ends; NULL: none is."""
    query = sa.select(_COLUMNS.ends_at).where(
        _COLUMNS.tenant_id == tenant_id, _COLUMNS.pool == pool, IS_ACTIVE
    )
    return query.scalar_subquery()
