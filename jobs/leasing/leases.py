"""Leases on jobs: at most one holder a role, fenced by an epoch that grows with each new holder.

A lease spares double work; it does not make writes safe. What does is `lock_lease`, called in every
transaction of a holder before it writes: it locks the lease row, so no other holder can begin
before the end of that transaction. Who locks the job too locks it first. Time is the database's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from core import metrics
from core.errors import LeaseLostError
from jobs.tables.jobs import jobs
from jobs.tables.progress import job_leases
from storage.postgres.intervals import seconds

_NOW = sa.func.clock_timestamp()  # not now(): a transaction may have waited for its locks

NO_HOLDER: Final = ""
"""The holder of a lease that was put aside: until it runs out, no process works on its job."""

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
    """Take up to `limit` jobs that satisfy `where` and that nobody holds, oldest first.

    `where` speaks of columns of `jobs`. Commit soon: the claimed jobs are locked until then, and
    others skip them.
    """
    job_ids = [row.id for row in connection.execute(claimable(role, limit, where))]
    if not job_ids:
        return []
    taken = insert(job_leases).from_select(
        ["job_id", "role", "holder", "epoch", "expires_at"],
        sa.select(
            jobs.c.id, sa.literal(role), sa.literal(holder), sa.literal(1), _until(ttl_s)
        ).where(jobs.c.id.in_(job_ids)),
    )
    # The condition is judged on the newest row, so a rival that was faster keeps its lease.
    statement = taken.on_conflict_do_update(
        index_elements=[job_leases.c.job_id, job_leases.c.role],
        set_={
            "holder": taken.excluded.holder,
            "epoch": job_leases.c.epoch + 1,
            "expires_at": taken.excluded.expires_at,
        },
        where=job_leases.c.expires_at <= _NOW,
    ).returning(job_leases.c.job_id, job_leases.c.epoch)
    epochs = {row.job_id: row.epoch for row in connection.execute(statement)}
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
    """Return the condition, on jobs outer-joined with leases of one role, that nobody holds one."""
    return sa.or_(job_leases.c.job_id.is_(None), job_leases.c.expires_at <= _NOW)


def extend(connection: sa.Connection, leases: Sequence[Lease], ttl_s: float) -> set[UUID]:
    """Keep `leases` for `ttl_s` seconds more; return the jobs that are still held.

    A lease that ran out is lost even when nobody took it: claim it again. One that a transaction
    has locked is passed over and held as long as it lasts: the others must not wait for that.
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
    """Let others claim the job at once; harmless when the lease is lost already."""
    connection.execute(sa.update(job_leases).where(_is(lease)).values(expires_at=_NOW))


def suspend(connection: sa.Connection, lease: Lease) -> None:
    """Let others see that nobody works on the job, which none may claim before the lease runs out.

    Harmless when the lease is lost already.
    """
    connection.execute(sa.update(job_leases).where(_is(lease)).values(holder=NO_HOLDER))


def lock_lease(connection: sa.Connection, lease: Lease) -> None:
    """Lock the lease until the transaction ends. Raises LeaseLostError.

    A lease that ran out and that nobody took is still good: no rival can have written.
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


def _until(ttl_s: float) -> sa.ColumnElement[object]:
    return _NOW + seconds(ttl_s)
