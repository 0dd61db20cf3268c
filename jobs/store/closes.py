"""What every close of a job sets in the transaction that records its reason, whoever writes it."""

from collections.abc import Collection
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from core.states import STOPPED_EARLY, CloseReason, JobState
from jobs.store.days import job_day
from jobs.store.outbox import NOTIFY_JOBS, NOTIFY_OUTBOX, close_inserts, event_insert
from jobs.tables.appended_files import job_inputs
from jobs.tables.jobs import jobs

_NO_MORE_FILES: Final = {"sealed": True, "total_final": True}


def close_values(reason: CloseReason) -> dict[str, Any]:
    """Return the columns of `jobs` that a close sets; see `drop_files` for what goes with it."""
    values: dict[str, Any] = {"close_reason": reason.value, **_NO_MORE_FILES}
    if reason in STOPPED_EARLY:
        values |= {"state": JobState.CANCELLING.value, "cancelling_at": sa.func.now()}
    return values


def drop_files(connection: sa.Connection, job_ids: Collection[UUID]) -> None:
    """Drop appended files of closed jobs that have no verdict yet: none of their items counts."""
    connection.execute(
        sa.update(job_inputs)
        .where(job_inputs.c.job_id.in_(job_ids), job_inputs.c.state == "validating")
        .values(state="dropped")
    )


def stop(connection: sa.Connection, row: sa.Row[Any], reason: CloseReason) -> None:
    """Move a job to cancelling; `row` is of `jobs`, locked, with a state that allows it.

    What decides goes to the log once the number of its items is known and any lacks its row.
    """
    closed_at = connection.execute(
        sa.update(jobs)
        .where(jobs.c.id == row.id)
        .values(close_values(reason))
        .returning(jobs.c.cancelling_at)
    ).scalar_one()
    drop_files(connection, [row.id])
    if row.total_count is not None and row.settled_at is None:
        for statement in close_inserts(row.id, job_day(row.created_at), reason):
            connection.execute(statement)
    at_s = closed_at.timestamp()
    connection.execute(event_insert(row.id, row.tenant_id, JobState.CANCELLING, at_s))
    connection.execute(NOTIFY_OUTBOX)
    connection.execute(NOTIFY_JOBS)
