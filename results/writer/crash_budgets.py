"""Counts the processes that the items of a job crash, and closes a job that exceeds its budget.

Each process counts once for a job, however often it is reported. The close is that of every budget
(ADR 26). Its transaction also starts the quarantine of the tenant on the pool (ADR 74).
"""

import logging
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

import sqlalchemy as sa

from core.states import CloseReason
from jobs.store.job_options import crash_budget
from jobs.store.tenant_quarantines import start_quarantine
from results import metrics
from results.writer.counter_locks import lock_jobs
from results.writer.counters import stop_running_job
from results.writer.statements import COUNT_PROCESS_ENDS, INSERT_PROCESS_ENDS
from storage.postgres.engines import raw_cursor
from topics.records.records import Outcomes

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CrashBudgets:
    """Counts process ends, one transaction for each job. Not thread-safe."""

    engine: sa.Engine
    quarantine_s: float  # of the tenant on the pool; 0: none

    def count_process_ends(self, records: Sequence[Outcomes]) -> None:
        """Count the process ends of the records. Idempotent.

        Raises one of DATABASE_UNAVAILABLE.
        """
        by_job: defaultdict[UUID, set[UUID]] = defaultdict(set)
        for record in records:
            by_job[record.job.job_id].update(record.process_ends)
        for job_id, process_ends in by_job.items():
            self._count(job_id, process_ends)

    def _count(self, job_id: UUID, process_ends: Collection[UUID]) -> None:
        is_exceeded = False
        with self.engine.begin() as connection:
            cursor = raw_cursor(connection)
            job = lock_jobs(cursor, [job_id]).get(job_id)
            if job is None or job.closed_reason is not None:
                return
            cursor.execute(INSERT_PROCESS_ENDS, [job_id, list(process_ends)], prepare=False)
            added = cursor.rowcount
            cursor.execute(COUNT_PROCESS_ENDS, [job_id], prepare=False)
            (count,) = cursor.fetchone() or (0,)
            if count > crash_budget(job.total_count):
                is_exceeded = self._stop(connection, job_id)
        metrics.PROCESS_ENDS.inc(added)
        if is_exceeded:
            metrics.CRASH_BUDGETS_EXCEEDED.inc()
            LOG.error(
                "a job exceeded its crash budget", extra={"job": job_id.hex, "crashes": count}
            )

    def _stop(self, connection: sa.Connection, job_id: UUID) -> bool:
        """Close the job and quarantine its tenant; False if it is closed or settled already."""
        row = stop_running_job(connection, job_id, CloseReason.CRASH_BUDGET)
        if row is None:
            return False
        if self.quarantine_s:
            start_quarantine(connection, row, self.quarantine_s)
        return True
