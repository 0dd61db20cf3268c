"""The end of the writer's transaction: counters, bill, and the job that has all its rows."""

from collections.abc import Sequence

import sqlalchemy as sa

from core.states import JobKind, JobState
from jobs.store.outbox import NOTIFY_JOBS, NOTIFY_OUTBOX, NOTIFY_REQUESTS, event_insert
from results.writer.counters import JobSum
from results.writer.statements import COUNT_AND_SETTLE
from storage.postgres.engines import raw_cursor


def count_and_settle(connection: sa.Connection, sums: Sequence[JobSum]) -> None:
    """Add `sums` to counters and ledger, and settle each job whose counters reach its total.

    Call in the transaction that inserted the rows, once a job. A settled job that was in progress
    is announced; one that is being cancelled keeps its state for the finaliser.
    """
    if not sums:
        return
    cursor = raw_cursor(connection)
    cursor.execute(COUNT_AND_SETTLE, [list(column) for column in zip(*sums, strict=True)])
    settled = cursor.fetchall()
    if not settled:
        return
    for job_id, tenant_id, state, now_s, _ in settled:
        if state == JobState.FINALIZING:
            connection.execute(event_insert(job_id, tenant_id, JobState.FINALIZING, now_s))
            connection.execute(NOTIFY_OUTBOX)
    kinds = {kind for *_, kind in settled}
    if JobKind.BATCH in kinds:
        connection.execute(NOTIFY_JOBS)
    if JobKind.REQUEST in kinds:
        connection.execute(NOTIFY_REQUESTS)
