"""Outcomes to rows: one transaction a group, right under redelivery, in any order, with duplicates.

    lock the jobs ─► drop what does not count ─► COPY ─► counters, bill, settling ─► commit
                          │                                 └► a job over its budget: a close
                          └► failures: a retry that waits, or a row and a dead letter

The key of `items` judges duplicates. COPY costs half of INSERT … ON CONFLICT and fails when a row
exists; only then, and until a group comes without any, existing rows are looked up first. The lock
makes that look exact: nobody else can add rows of these jobs before the commit.
"""

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from core.outcomes import Outcome
from jobs.recovery.retry_policy import RetryRules
from results import metrics
from results.writer.counter_locks import AdmittedItems, admit_items, lock_jobs
from results.writer.counters import JobSum, sum_items
from results.writer.day_partitions import DayPartitions
from results.writer.failure_handling import FailureHandler, record_dead_letters
from results.writer.item_copy import copy_items, missing_items
from results.writer.record_groups import JobItems
from results.writer.settling import count_and_settle
from results.writer.stopping import stop_over_budget
from storage.postgres.engines import raw_cursor
from storage.postgres.refused_statements import DATA_REFUSED, ROW_EXISTS
from topics.records.records import ItemOutcome

LOG = logging.getLogger(__name__)

UNSTORABLE_CODE: Final = "result_unstorable"
"""Code of an item whose result Postgres refused."""

_RETRIES: Final = RetryRules()

_REFUSED: Final[tuple[type[Exception], ...]] = (*DATA_REFUSED, OverflowError, UnicodeError)


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What one committed transaction did."""

    sums: list[JobSum]
    row_count: int
    duplicate_count: int
    retry_count: int = 0  # failures that wait for another attempt
    dead_count: int = 0  # items of batches that failed for good
    deduplicating: frozenset[UUID] = frozenset()  # jobs whose copies may take something over now


class ItemWriter:
    """Writes groups of outcomes; one thread uses it."""

    def __init__(
        self,
        engine: sa.Engine,
        partitions: DayPartitions,
        *,
        retries: RetryRules = _RETRIES,
        fraction: Callable[[], float] = random.random,
    ) -> None:
        """The engine needs two connections: one to write, one to make a day's partition.

        `fraction` spreads retries: it returns an even random number from [0, 1).
        """
        self._engine = engine
        self._partitions = partitions
        self._failures = FailureHandler(retries, fraction)
        self._expects_duplicates = True  # what a predecessor wrote uncommitted comes again

    def write(self, jobs: JobItems) -> frozenset[UUID]:
        """Make the outcomes durable, in one transaction unless Postgres refuses one of them.

        Calling it again with any of them changes nothing. Returns those of the jobs that
        deduplicate: what is a copy of these items is due. Raises one of DATABASE_AWAY.
        """
        if not jobs:
            return frozenset()
        try:
            return self._write_once(jobs)
        except _REFUSED as refusal:
            return self._write_in_parts(jobs, refusal)

    def _write_once(self, jobs: JobItems) -> frozenset[UUID]:
        if not self._expects_duplicates:
            try:
                return self._transaction(jobs).deduplicating
            except ROW_EXISTS:
                self._expects_duplicates = True
        written = self._transaction(jobs)
        self._expects_duplicates = written.duplicate_count > 0
        return written.deduplicating

    def _transaction(self, jobs: JobItems) -> WriteResult:
        started = time.perf_counter()
        with self._engine.begin() as connection:
            cursor = raw_cursor(connection)
            locked = lock_jobs(cursor, jobs)
            admitted = admit_items(jobs, locked)
            self._partitions.ensure({locked[job_id].day for job_id in admitted.jobs})
            new, retry_count, dead_count = admitted.jobs, 0, 0
            sums = [sum_items(job_id, items) for job_id, items in new.items()]
            has_failures = any(job_sum.failed for job_sum in sums)
            if has_failures:
                judged = self._failures.handle(cursor, new, locked)
                new, retry_count = judged.final, judged.waiting_count
            if self._expects_duplicates:
                new = missing_items(cursor, new, locked)
            if new is not admitted.jobs:
                sums = [sum_items(job_id, items) for job_id, items in new.items()]
            copy_items(cursor, new, locked)
            if has_failures:
                dead_count = record_dead_letters(connection, new, locked)
            count_and_settle(connection, sums)
            stop_over_budget(connection, sums, locked)
        duplicate_count = _count(admitted.jobs) - _count(new) - retry_count
        deduplicating = frozenset(j for j in admitted.jobs if locked[j].deduplicates)
        written = WriteResult(
            sums, _count(new), duplicate_count, retry_count, dead_count, deduplicating
        )
        _measure(written, admitted, time.perf_counter() - started)
        return written

    def _write_in_parts(self, jobs: JobItems, refusal: Exception) -> frozenset[UUID]:
        """Halve until the refused outcome is alone; its item then fails without a body."""
        if _count(jobs) > 1:
            return frozenset().union(*[self.write(half) for half in _halves(jobs)])
        ((job_id, [item]),) = jobs.items()
        substitute = _unstorable(item)
        if item == substitute:
            raise refusal  # the outcome was not to blame
        code = getattr(refusal, "sqlstate", None) or type(refusal).__name__
        LOG.error("result refused", extra={"job": job_id, "index": item.index, "code": code})
        deduplicating = self._write_once({job_id: [substitute]})
        metrics.UNSTORABLE.inc()
        return deduplicating


def _unstorable(item: ItemOutcome) -> ItemOutcome:
    """The failed outcome that stands for one that cannot be stored; nothing of it is billed."""
    return ItemOutcome(
        index=item.index,
        custom_id=None,  # may be what was refused; the input file has it
        outcome=Outcome.FAILED,
        status_code=0,
        body=b"",
        error_code=UNSTORABLE_CODE,
    )


def _halves(jobs: JobItems) -> tuple[JobItems, JobItems]:
    pairs = [(job_id, item) for job_id, items in jobs.items() for item in items]
    halves: tuple[JobItems, JobItems] = ({}, {})
    for position, (job_id, item) in enumerate(pairs):
        halves[2 * position >= len(pairs)].setdefault(job_id, []).append(item)
    return halves


def _count(jobs: JobItems) -> int:
    return sum(map(len, jobs.values()))


def _measure(written: WriteResult, admitted: AdmittedItems, seconds: float) -> None:
    for outcome in Outcome:
        rows = sum(getattr(job_sum, outcome.label) for job_sum in written.sums)
        if rows:
            metrics.ITEMS_COMPLETED.labels(outcome.label).inc(rows)
    metrics.DUPLICATES.inc(written.duplicate_count)
    metrics.RETRIES_SCHEDULED.inc(written.retry_count)
    metrics.DEAD_ITEMS.inc(written.dead_count)
    metrics.IGNORED_AFTER_CLOSE.inc(admitted.ignored_count)
    metrics.UNKNOWN_JOB.inc(admitted.unknown_count)
    metrics.ROWS_PER_TRANSACTION.observe(written.row_count)
    metrics.TRANSACTION_SECONDS.observe(seconds)
