"""A job that stops itself: its counters crossed a bound that its owner set.

Looked at in the writer's transaction, only for jobs that have bounds. What is in flight still
counts until the close is read from the log, as with every close (ADR 1).
"""

from collections.abc import Mapping, Sequence
from uuid import UUID

import sqlalchemy as sa

from core.states import JobState
from jobs.store.closes import stop
from jobs.store.job_budgets import close_due
from jobs.tables.jobs import jobs
from results.writer.counter_locks import LockedJob
from results.writer.counters import JobSum


def stop_over_budget(
    connection: sa.Connection, sums: Sequence[JobSum], locked: Mapping[UUID, LockedJob]
) -> list[UUID]:
    """Close the jobs whose counters, with `sums` added, cross a bound; return which.

    Their counters are locked and hold `sums` already. A job that is closed or settled stays.
    """
    stopped = []
    for added in sums:
        job = locked[added.job_id]
        if job.budget is None:
            continue
        reason = close_due(
            job.budget,
            succeeded=job.succeeded + added.succeeded,
            failed=job.failed + added.failed,
            total_tokens=job.total_tokens + added.input_tokens + added.output_tokens,
        )
        if reason is None:
            continue
        row = connection.execute(
            sa.select(jobs)
            .where(
                jobs.c.id == job.job_id,
                jobs.c.state == JobState.IN_PROGRESS.value,
                jobs.c.close_reason.is_(None),
                jobs.c.settled_at.is_(None),
            )
            .with_for_update(key_share=True)
        ).one_or_none()
        if row is not None:
            stop(connection, row, reason)
            stopped.append(job.job_id)
    return stopped
