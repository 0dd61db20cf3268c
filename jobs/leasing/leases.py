"""Leases on jobs: at most one holder per role, fenced by an epoch that grows with each new holder.

A lease avoids double work but does not make writes safe. `lock_lease` does: every transaction of a
holder calls it before it writes. It locks the lease row, so no other holder can start before that
transaction ends. A transaction that also locks the job locks the job first. All times are the
database's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from core.errors import LeaseLostError
from core.runtime import metrics
from jobs.tables.jobs import job_leases, jobs
from storage.postgres.database_times import seconds

_NOW = sa.func.clock_timestamp()  # not now(): a transaction may have waited for its locks

NO_HOLDER: Final = ""
"""The holder of a suspended lease: no process works on its job until the lease expires."""

_EXTEND: Final = sa.text("""
WITH mine AS (
    SELECT * FROM unnest(:jobs, :roles, :holders, :epochs) AS lease (job_id, role, holder, epoch)
), free AS (
    SELECT l.job_id, l.role FROM job_leases l JOIN mine USING (job_id, role, holder, epoch)
    WHERE l.expires_at > clock_timestamp() FOR UPDATE OF l SKIP LOCKED
), extended AS (
    UPDATE job_leases l SET expires_at = clock_timestamp() + make_interval(secs => :ttl_s)
    FROM free WHERE l.job_id = free.job_id AND l.role = free.role
)
SELECT l.job_id FROM job_leases l JOIN mine USING (job_id, role, holder, epoch)
WHERE l.expires_at > clock_timestamp()
""").bindparams(
    sa.bindparam("jobs", type_=sa.ARRAY(sa.Uuid)),
    sa.bindparam("roles", type_=sa.ARRAY(sa.Text)),
    sa.bindparam("holders", type_=sa.ARRAY(sa.Text)),
    sa.bindparam("epochs", type_=sa.ARRAY(sa.BigInteger)),
)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right of one holder to work on a job in one role."""

    job_id: UUID
    role: str
    holder: str
    epoch: int


def claim(
    connection: sa.Connection,
    *,
    role: str,
    holder: str,
    ttl_s: float,
    limit: int,
    where: sa.ColumnElement[bool],
) -> list[Lease]:
    """Claim up to `limit` jobs that satisfy `where` and have no holder, oldest first.

    `where` is a condition on columns of `jobs`. Commit soon: the claimed jobs stay locked until
    then, and other claims skip them.
    """
    job_ids = [row.id for row in connection.execute(claimable(role, limit, where))]
    if not job_ids:
        return []
    statement = insert(job_leases).from_select(
        ["job_id", "role", "holder", "epoch", "expires_at"],
        sa.select(
            jobs.c.id, sa.literal(role), sa.literal(holder), sa.literal(1), _NOW + seconds(ttl_s)
        ).where(jobs.c.id.in_(job_ids)),
    )
    # Postgres checks the condition on the newest row, so a concurrent claim keeps its lease.
    claimed = statement.on_conflict_do_update(
        index_elements=[job_leases.c.job_id, job_leases.c.role],
        set_={
            "holder": statement.excluded.holder,
            "epoch": job_leases.c.epoch + 1,
            "expires_at": statement.excluded.expires_at,
        },
        where=job_leases.c.expires_at <= _NOW,
    ).returning(job_leases.c.job_id, job_leases.c.epoch)
    epochs = {row.job_id: row.epoch for row in connection.execute(claimed)}
    return [Lease(job_id, role, holder, epochs[job_id]) for job_id in job_ids if job_id in epochs]


def claimable(role: str, limit: int, where: sa.ColumnElement[bool]) -> sa.Select[tuple[UUID]]:
    """Return the query that locks the oldest jobs without a holder in `role`."""
    held = sa.and_(job_leases.c.job_id == jobs.c.id, job_leases.c.role == role)
    return (
        sa.select(jobs.c.id)
        .select_from(jobs.outerjoin(job_leases, held))
        .where(where, is_unheld())
        .order_by(jobs.c.created_at)
        .limit(limit)
        .with_for_update(of=jobs, key_share=True, skip_locked=True)
    )


def is_unheld() -> sa.ColumnElement[bool]:
    """Return the condition, on jobs outer-joined with leases of one role, that none is held."""
    return sa.or_(job_leases.c.job_id.is_(None), job_leases.c.expires_at <= _NOW)


def extend(connection: sa.Connection, leases: Sequence[Lease], ttl_s: float) -> set[UUID]:
    """Extend `leases` by `ttl_s` seconds; return the jobs that are still held.

    An expired lease is lost even if no one claimed it: claim it again. A lease locked by a
    transaction is skipped, so that the others need not wait, and counts as held until it expires.
    """
    bound = {
        "jobs": [lease.job_id for lease in leases],
        "roles": [lease.role for lease in leases],
        "holders": [lease.holder for lease in leases],
        "epochs": [lease.epoch for lease in leases],
        "ttl_s": ttl_s,
    }
    return set(connection.scalars(_EXTEND, bound))


def release(connection: sa.Connection, lease: Lease) -> None:
    """Let others claim the job now; harmless if the lease is lost."""
    connection.execute(sa.update(job_leases).where(_is(lease)).values(expires_at=_NOW))


def suspend(connection: sa.Connection, lease: Lease, pause_s: float | None = None) -> None:
    """Mark the lease as without holder; no one may claim the job before the lease expires.

    It expires in `pause_s` if that is given. Harmless if the lease is lost.
    """
    statement = sa.update(job_leases).where(_is(lease)).values(holder=NO_HOLDER)
    if pause_s is not None:
        statement = statement.values(expires_at=_NOW + seconds(pause_s))
    connection.execute(statement)


def lock_lease(connection: sa.Connection, lease: Lease) -> None:
    """Lock the lease until the transaction ends. Raises LeaseLostError.

    An expired lease that no one claimed is still valid: no other holder can have written.
    """
    held = connection.execute(sa.select(job_leases.c.epoch).where(_is(lease)).with_for_update())
    if held.one_or_none() is None:
        metrics.WRITES_REFUSED.labels(lease.role).inc()
        raise LeaseLostError(job_id=lease.job_id, role=lease.role, epoch=lease.epoch)


def _is(lease: Lease) -> sa.ColumnElement[bool]:
    return sa.and_(
        job_leases.c.job_id == lease.job_id,
        job_leases.c.role == lease.role,
        job_leases.c.holder == lease.holder,
        job_leases.c.epoch == lease.epoch,
    )
