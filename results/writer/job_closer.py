"""Closes jobs: gives every item that has no row a final one, in slices.

The first slice sets `closed_reason`; from then on no outcome of the job counts. After a crash
between two slices the close is delivered again and continues with the missing rows.
"""

import logging
import time
from dataclasses import dataclass
from functools import partial
from typing import Final

import sqlalchemy as sa

from core.outcomes import Outcome
from core.states import CloseReason
from results import metrics
from results.writer.counter_locks import LockedJob, lock_jobs
from results.writer.counters import JobSum, count_and_settle
from results.writer.day_partitions import DayPartitions
from results.writer.open_work import WorkStep
from results.writer.statements import DROP_RETRIES, INSERT_MISSING, SET_CLOSED
from storage.postgres.engines import Cursor, raw_cursor
from topics.records.records import JobClose

LOG = logging.getLogger(__name__)

CLOSE_OUTCOMES: Final = {
    CloseReason.CANCELLED: (Outcome.CANCELLED, "batch_cancelled"),
    CloseReason.EXPIRED: (Outcome.EXPIRED, "batch_expired"),
    CloseReason.FAILURE_BUDGET: (Outcome.CANCELLED, "failure_budget_exceeded"),
    CloseReason.SPEND_CAP: (Outcome.CANCELLED, "spend_cap_reached"),
    CloseReason.CRASH_BUDGET: (Outcome.CANCELLED, "crash_budget_exceeded"),
}


@dataclass(frozen=True, slots=True)
class JobCloser:
    """Turns Close records into item rows. Not thread-safe."""

    engine: sa.Engine
    partitions: DayPartitions
    slice_items: int = 10_000  # indexes that one transaction examines

    def close_steps(self, close: JobClose) -> list[WorkStep]:
        """Return the steps that give every item of the job its row."""
        return [partial(self._run_slice, close, 0)]

    def _run_slice(self, close: JobClose, first: int) -> list[WorkStep]:
        job = self._slice(close, first)
        after = first + self.slice_items
        is_done = job is None or after >= job.total_count
        return [] if is_done else [partial(self._run_slice, close, after)]

    def _slice(self, close: JobClose, first: int) -> LockedJob | None:
        """Close the indexes from `first` on; None when the job is complete or unknown."""
        started = time.perf_counter()
        with self.engine.begin() as connection:
            cursor = raw_cursor(connection)
            job = lock_jobs(cursor, [close.job_id]).get(close.job_id)
            if job is None or not job.total_count:
                LOG.warning("close of an unknown job", extra={"job": close.job_id})
                metrics.UNKNOWN_JOB.inc()
                return None
            reason = CloseReason(job.closed_reason or close.close_reason)  # the first close wins
            cursor.execute(SET_CLOSED, [reason.value, job.job_id], prepare=False)
            if job.ended_count == job.total_count:
                # The job may have waited for appended files: no further row could settle it.
                count_and_settle(connection, [JobSum(job.job_id)])
                return None
            self.partitions.ensure([job.day])
            last = min(first + self.slice_items, job.total_count) - 1
            outcome, ended = _insert_missing(cursor, job, reason, (first, last))
            cursor.execute(DROP_RETRIES, [job.job_id, first, last], prepare=False)
            count = getattr(ended, outcome.label)
            if count:
                count_and_settle(connection, [ended])
        metrics.ITEMS_COMPLETED.labels(outcome.label).inc(count)
        metrics.ROWS_PER_TRANSACTION.observe(count)
        metrics.TRANSACTION_SECONDS.observe(time.perf_counter() - started)
        return job


def _insert_missing(
    cursor: Cursor, job: LockedJob, reason: CloseReason, indexes: tuple[int, int]
) -> tuple[Outcome, JobSum]:
    outcome, code = CLOSE_OUTCOMES[reason]
    parameters = [job.job_id, job.day, outcome.value, code, *indexes]
    cursor.execute(INSERT_MISSING, parameters, prepare=False)
    count, item_indexes = cursor.fetchone() or (0, "{}")
    ended = JobSum(job.job_id, item_indexes=item_indexes)
    return outcome, ended._replace(**{outcome.label: count})
