"""Closes jobs whose completion window has ended; republishes closes and copies of stalled jobs.

A job without a verdict on its file ends here, too, if the object store does not let it be read.

The database's clock decides. A job whose record was lost would otherwise stay open for ever.
"""

from collections.abc import Collection
from datetime import timedelta
from functools import cache
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from core.states import CloseReason, JobState
from jobs import metrics
from jobs.expansion.cursors import restart_stall_wait
from jobs.expansion.job_loads import OPEN
from jobs.input.line_checks import ErrorCode, LineError
from jobs.store.job_closing import close_values, drop_unvalidated_files
from jobs.store.outbox import (
    NOTIFY_JOBS,
    copies_insert,
    event_insert,
    publish_close,
)
from jobs.tables.jobs import job_counters, job_cursors, jobs
from jobs.validation.verdicts import VALIDATION_DUE
from storage.postgres.outbox import NOTIFY_OUTBOX

_SWEEP_MAX: Final = 100

VERDICT_GRACE_S: Final = 20.0
"""How long a cancelled or expired job may wait for the verdict on its file, which counts its items:
then each of them gets a row and a line in the error file. Jobs must end within 30 s."""

_NOT_VALIDATED: Final = LineError(
    ErrorCode.NOT_VALIDATED, "The completion window ended before the input file could be validated."
)


@cache
def expiry_due_query(limit: int) -> sa.Select[tuple[object, ...]]:
    """Return the query that locks expired jobs; concurrent sweeps skip each other's jobs."""
    return (
        sa.select(jobs.c.id, jobs.c.created_at)
        .where(
            # Literals, so that Postgres recognises the partial index.
            sa.literal_column("jobs.state = 'in_progress'"),
            jobs.c.settled_at.is_(None),
            jobs.c.close_reason.is_(None),
            jobs.c.expires_at <= sa.func.now(),
        )
        .limit(limit)
        .with_for_update(skip_locked=True, key_share=True)
    )


def _stalled_query(
    stall_limit_s: float, *where: sa.ColumnElement[bool]
) -> sa.Select[tuple[object, ...]]:
    """Return the query that locks jobs without progress for `stall_limit_s`.

    The lock on the cursor keeps other processes from the same job; the caller restarts its wait.
    """
    stalled_since = sa.func.now() - timedelta(seconds=stall_limit_s)
    return (
        sa.select(jobs.c.id, jobs.c.created_at, jobs.c.close_reason, jobs.c.total_count)
        .join(job_counters, job_counters.c.job_id == jobs.c.id)
        .join(job_cursors, job_cursors.c.job_id == jobs.c.id)
        .where(
            job_counters.c.updated_at < stalled_since,
            sa.func.coalesce(job_cursors.c.repaired_at, jobs.c.created_at) < stalled_since,
            *where,
        )
        .limit(_SWEEP_MAX)
        .with_for_update(of=job_cursors, skip_locked=True)
    )


def sweep_expired_jobs(engine: sa.Engine, *, stall_limit_s: float) -> None:
    """Republish stalled closes, then close jobs until none is expired.

    A close without progress for `stall_limit_s` is stalled. Any number of replicas may run it.
    """
    with engine.begin() as connection:
        republish_closes(connection, stall_limit_s)
    with engine.begin() as connection:
        end_without_verdict(connection, VERDICT_GRACE_S)
    count = _SWEEP_MAX
    while count == _SWEEP_MAX:
        with engine.begin() as connection:
            count = close_expired(connection)
        metrics.JOBS_EXPIRED.inc(count)


def close_expired(connection: sa.Connection) -> int:
    """Close a limited number of expired jobs in one transaction; return how many.

    The state does not change: the results writer writes the missing rows and then settles the job.
    """
    due = connection.execute(expiry_due_query(_SWEEP_MAX)).all()
    if not due:
        return 0
    job_ids = [job.id for job in due]
    connection.execute(
        sa.update(jobs).where(jobs.c.id.in_(job_ids)).values(close_values(CloseReason.EXPIRED))
    )
    drop_unvalidated_files(connection, job_ids)
    for job in due:
        publish_close(connection, job, CloseReason.EXPIRED)
    connection.execute(NOTIFY_OUTBOX)
    connection.execute(NOTIFY_JOBS)
    return len(due)


def end_without_verdict(connection: sa.Connection, grace_s: float) -> int:
    """End cancelled and expired jobs that still have no verdict after `grace_s`; return how many.

    None of their items counts. A verdict that comes later finds an ended job and changes nothing.
    """
    due = connection.execute(unvalidated_query(grace_s)).all()
    for job in due:
        state, values = _end_values(is_cancelling=job.state == JobState.CANCELLING.value)
        connection.execute(sa.update(jobs).where(jobs.c.id == job.id).values(values))
        connection.execute(event_insert(job.id, job.tenant_id, state, job.now.timestamp()))
    if due:
        drop_unvalidated_files(connection, [job.id for job in due])
        connection.execute(NOTIFY_OUTBOX)
    return len(due)


@cache
def unvalidated_query(grace_s: float) -> sa.Select[tuple[Any, ...]]:
    """Return the query that locks jobs that were closed `grace_s` ago and have no verdict."""
    closed_at = sa.case(
        (jobs.c.state == JobState.CANCELLING.value, jobs.c.cancelling_at), else_=jobs.c.expires_at
    )
    return (
        sa.select(jobs.c.id, jobs.c.tenant_id, jobs.c.state, sa.func.now().label("now"))
        .where(VALIDATION_DUE, closed_at <= sa.func.now() - timedelta(seconds=grace_s))
        .limit(_SWEEP_MAX)
        .with_for_update(skip_locked=True)
    )


def _end_values(*, is_cancelling: bool) -> tuple[JobState, dict[str, object]]:
    if is_cancelling:
        state = JobState.CANCELLED
        return state, {"state": state.value, "cancelled_at": sa.func.now(), "total_count": 0}
    state = JobState.FAILED
    errors = {"errors": [_NOT_VALIDATED.as_json()], "error_count": 1}
    return state, {"state": state.value, "failed_at": sa.func.now(), **errors}


def republish_closes(connection: sa.Connection, stall_limit_s: float) -> int:
    """Publish the close of stalled jobs again; return how many jobs.

    A repeated close changes nothing: the results writer only writes rows that are missing.
    """
    found = connection.execute(closes_query(stall_limit_s)).all()
    for job in found:
        publish_close(connection, job, CloseReason(job.close_reason))
    if found:
        restart_stall_wait(connection, [job.id for job in found])
        connection.execute(NOTIFY_OUTBOX)
    return len(found)


@cache
def closes_query(stall_limit_s: float) -> sa.Select[tuple[object, ...]]:
    """Return the query that locks closed jobs without progress for `stall_limit_s`."""
    closed_since = sa.func.coalesce(jobs.c.cancelling_at, jobs.c.expires_at)
    is_closed: tuple[sa.ColumnElement[bool], ...] = (
        # Literals, so that Postgres recognises the partial index.
        sa.literal_column("jobs.state IN ('in_progress', 'cancelling')"),
        jobs.c.settled_at.is_(None),
        jobs.c.close_reason.is_not(None),
        jobs.c.total_count.is_not(None),
        closed_since < sa.func.now() - timedelta(seconds=stall_limit_s),
    )
    return _stalled_query(stall_limit_s, *is_closed)


def republish_copies(engine: sa.Engine, job_ids: Collection[UUID], *, stall_limit_s: float) -> None:
    """Republish the record by which copies take over results, for jobs whose record was lost.

    `job_ids` are those with only copies left, as `OpenLoads` knows them. Normally copies get their
    rows with the result of their original, or with the verdict on an appended file. A repeated
    record changes nothing. Any number of processes may run it.
    """
    if not job_ids:
        return
    counted, cursor = job_counters.c, job_cursors.c
    ended = counted.succeeded + counted.failed + counted.cancelled + counted.expired
    only_copies_are_left = (
        OPEN,
        # One array parameter: a statement is limited to 65,535 parameters.
        jobs.c.id == sa.any_(sa.literal(list(job_ids), sa.ARRAY(sa.Uuid))),
        jobs.c.deduplicate,
        cursor.item_index >= jobs.c.total_count,
        ended < jobs.c.total_count,
        ended - counted.copied >= cursor.item_index - cursor.copy_count,
    )
    with engine.begin() as connection:
        found = connection.execute(_stalled_query(stall_limit_s, *only_copies_are_left)).all()
        for job in found:
            connection.execute(copies_insert(job.id, 0, job.total_count))
        if found:
            restart_stall_wait(connection, [job.id for job in found])
            connection.execute(NOTIFY_OUTBOX)
