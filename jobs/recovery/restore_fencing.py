"""Unfinished jobs made newer than anything the log may hold of them.

After Postgres was restored to an earlier moment, the log can know later control states of a job,
and objects of later leases. Versions and epochs jump past all of them, and what the log said of
control is taken back before the restored state is said again.
"""

from collections.abc import Collection
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from core.states import TERMINAL_STATES, CloseReason, JobKind
from jobs.store.control_state import write_control_state
from jobs.store.outbox import CONTROL_CLOSED_VERSION, NOTIFY_OUTBOX, outbox_insert
from jobs.tables.jobs import jobs
from jobs.tables.outbox import outbox
from jobs.tables.progress import job_leases
from jobs.validation.append_verdicts import APPEND_DUE
from topics.records.catalogue import CONTROL
from topics.records.partitioner import job_partition
from topics.records.records import JobControl

VERSION_JUMP: Final = 10_000
"""More control changes, or holders of a lease, than a job has between a backup and its restore."""

SLICE_JOBS: Final = 500

# Literal, so that Postgres sees that the partial index on unfinished jobs fits.
_UNFINISHED: Final = jobs.c.state.in_(
    [
        sa.literal_column(f"'{state}'")
        for state in ("validating", "in_progress", "finalizing", "cancelling")
    ]
)


class RestorePosition(NamedTuple):
    """How far a renewal has come, from the first created job on."""

    created_at: datetime
    job_id: UUID


def count_unvalidated_jobs(connection: sa.Connection) -> int:
    """Return the unfinished jobs with items that nobody has counted: their results are of nobody.

    They are those of the job's file, or of one that was appended. Intake counts them; before it
    does, a results writer passes over what the log holds of them.
    """
    uncounted = sa.or_(sa.and_(_UNFINISHED, jobs.c.total_count.is_(None)), APPEND_DUE)
    query = sa.select(sa.func.count()).select_from(jobs).where(uncounted)
    return connection.execute(query).scalar_one()


def fence_restored_jobs(
    connection: sa.Connection, after: RestorePosition | None
) -> list[sa.Row[Any]]:
    """Renew a slice of the unfinished jobs behind a place; return their rows in their order."""
    query = sa.select(jobs).where(_UNFINISHED)
    if after is not None:
        place = sa.tuple_(
            sa.literal(after.created_at, jobs.c.created_at.type),
            sa.literal(after.job_id, jobs.c.id.type),
        )
        query = query.where(sa.tuple_(jobs.c.created_at, jobs.c.id) > place)
    query = query.order_by(jobs.c.created_at, jobs.c.id).limit(SLICE_JOBS)
    found = list(connection.execute(query.with_for_update(key_share=True)))
    for row in found:
        assert row.state not in TERMINAL_STATES
        if row.kind == JobKind.BATCH.value:
            _say_again(connection, row)
    connection.execute(
        sa.update(job_leases)
        .where(job_leases.c.job_id.in_([row.id for row in found]))
        .values(epoch=job_leases.c.epoch + VERSION_JUMP, expires_at=sa.func.now())
    )
    _fence_first_finaliser(connection, found)
    connection.execute(NOTIFY_OUTBOX)
    return found


def _say_again(connection: sa.Connection, row: sa.Row[Any]) -> None:
    """Take back what the log says of a job, then say what is restored."""
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
    closed = JobControl(
        job_id=row.id, version=CONTROL_CLOSED_VERSION, closed=CloseReason(row.close_reason)
    )
    connection.execute(outbox_insert(CONTROL, closed, job_id=row.id))


def _fence_first_finaliser(connection: sa.Connection, rows: Collection[sa.Row[Any]]) -> None:
    """Let the next finaliser of each job begin above the epochs whose objects may exist."""
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
