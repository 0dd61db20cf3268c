"""Fences unfinished jobs after Postgres was restored to an earlier moment.

The log may then have later control states of a job, and the object store objects of later leases.
So control versions and lease epochs jump past all of them, and the control records on the log are
replaced by the restored state.
"""

from collections.abc import Collection
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from core.states import TERMINAL_STATES, CloseReason, JobKind
from jobs.store.controls import write_control_state
from jobs.store.files import UNFINISHED
from jobs.store.keyset_pages import position_of
from jobs.store.outbox import closed_control, outbox_insert
from jobs.tables.jobs import job_leases, jobs
from jobs.validation.verdicts import APPEND_DUE
from storage.postgres.outbox import NOTIFY_OUTBOX, outbox
from topics.records.catalogue import CONTROL
from topics.records.partitioner import job_partition

VERSION_JUMP: Final = 10_000
"""More control changes, or lease holders, than a job has between a backup and its restore."""

SLICE_JOBS: Final = 500

_ORDER: Final = (jobs.c.created_at, jobs.c.id)


def count_unvalidated_jobs(connection: sa.Connection) -> int:
    """Return the number of unfinished jobs with a file that was not validated, first or appended.

    Until intake has counted their items, the results writer skips results of these items.
    """
    unvalidated = sa.or_(sa.and_(UNFINISHED, jobs.c.total_count.is_(None)), APPEND_DUE)
    query = sa.select(sa.func.count()).select_from(jobs).where(unvalidated)
    return connection.execute(query).scalar_one()


def fence_restored_jobs(connection: sa.Connection, after: sa.Row[Any] | None) -> list[sa.Row[Any]]:
    """Fence the next unfinished jobs behind the row `after`; return their rows in order."""
    query = sa.select(jobs).where(UNFINISHED)
    if after is not None:
        query = query.where(sa.tuple_(*_ORDER) > position_of(after, *_ORDER))
    query = query.order_by(*_ORDER).limit(SLICE_JOBS)
    rows = list(connection.execute(query.with_for_update(key_share=True)))
    for row in rows:
        assert row.state not in TERMINAL_STATES
        if row.kind == JobKind.BATCH.value:
            _republish_control(connection, row)
    connection.execute(
        sa.update(job_leases)
        .where(job_leases.c.job_id.in_([row.id for row in rows]))
        .values(epoch=job_leases.c.epoch + VERSION_JUMP, expires_at=sa.func.now())
    )
    _fence_first_finaliser(connection, rows)
    connection.execute(NOTIFY_OUTBOX)
    return rows


def _republish_control(connection: sa.Connection, row: sa.Row[Any]) -> None:
    """Delete the control state of a job from the log, then publish the restored one."""
    connection.execute(
        outbox.insert().values(
            topic=CONTROL.name,
            partition=job_partition(row.id, CONTROL.partition_count),
            key=row.id.bytes,
            headers=[],
            value=None,
        )
    )
    if row.close_reason is None:
        write_control_state(connection, row, {}, jump=VERSION_JUMP)
        return
    closed = closed_control(row.id, CloseReason(row.close_reason))
    connection.execute(outbox_insert(CONTROL, closed, job_id=row.id))


def _fence_first_finaliser(connection: sa.Connection, rows: Collection[sa.Row[Any]]) -> None:
    """Let the next finaliser of each job start above the epochs whose objects may exist."""
    if not rows:
        return
    past = sa.select(
        jobs.c.id,
        sa.literal("finaliser"),
        sa.literal("restored"),
        sa.literal(VERSION_JUMP),
        sa.func.now(),
    ).where(jobs.c.id.in_([row.id for row in rows]))
    statement = insert(job_leases).from_select(
        ["job_id", "role", "holder", "epoch", "expires_at"], past
    )
    connection.execute(statement.on_conflict_do_nothing())
