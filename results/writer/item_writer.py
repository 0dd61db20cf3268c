"""Writes outcomes as item rows, one transaction per group; idempotent under redelivery.

    lock the jobs ─► drop what does not count ─► provenance ─► COPY ─► counters, ledger, settling
                          │                                                        │      ─► commit
                          │                           close of a job over its budget ◄─┘
                          └► failures: a scheduled retry, or a row and a dead letter

The primary key of `items` decides about duplicates. COPY costs half of INSERT … ON CONFLICT but
fails when a row exists: then, and until a group without duplicates, existing rows are looked up
first. The look-up is exact, because under the lock no other writer can add rows of these jobs.
"""

import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from core.outcomes import Outcome
from core.stages import STAGE_MS_MAX, Stage
from jobs.recovery.retry_policy import RetryRules
from results import metrics
from results.writer.counter_locks import LockedJob, admit_items, lock_jobs, missing_items
from results.writer.counters import (
    count_and_settle,
    measure_transaction,
    stop_over_budget,
    sum_by_model,
    sum_items,
)
from results.writer.day_partitions import DayPartitions
from results.writer.failure_handling import FailureHandler, record_dead_letters
from results.writer.provenance import (
    UNKNOWN_PROVENANCE,
    ItemGroup,
    OutcomeProvenance,
    Provenance,
    count_provenance,
)
from results.writer.record_groups import JobItems
from results.writer.statements import COPY_ITEMS, COPY_TYPES
from storage.postgres.engines import DATA_REJECTED, ROW_EXISTS, Cursor, raw_cursor
from topics.metrics import STAGE_SECONDS
from topics.records.records import ItemOutcome

LOG = logging.getLogger(__name__)

UNSTORABLE_CODE: Final = "result_unstorable"
"""Error code of an item whose result Postgres refused."""

_RETRIES: Final = RetryRules()
_SMALLINT_MAX: Final = 2**15 - 1
_INTEGER_MAX: Final = 2**31 - 1
_RESULT_SECONDS: Final = STAGE_SECONDS.labels(Stage.RESULT, "bulk")  # of durable calls, too
_NO_STAGES: Final = (None, None, None, None)  # of releases that do not report them

_REFUSED: Final[tuple[type[Exception], ...]] = (*DATA_REJECTED, OverflowError, UnicodeError)


class ItemWriter:
    """Writes groups of outcomes. Not thread-safe."""

    def __init__(
        self,
        engine: sa.Engine,
        partitions: DayPartitions,
        *,
        retries: RetryRules = _RETRIES,
        fraction: Callable[[], float] = random.random,
    ) -> None:
        """`engine` needs two connections: one to write, one to create a day's partition.

        `fraction` spreads retries: it returns a uniform random number from [0, 1).
        """
        self._engine = engine
        self._partitions = partitions
        self._failures = FailureHandler(retries, fraction)
        self._expects_duplicates = True  # uncommitted records of the previous owner come again

    def write(
        self, jobs: JobItems, provenance: OutcomeProvenance = UNKNOWN_PROVENANCE
    ) -> frozenset[UUID]:
        """Make the outcomes durable: one transaction, or several if Postgres refuses an outcome.

        Idempotent. Returns the jobs that deduplicate: copies of these items need their rows now.
        Raises one of DATABASE_UNAVAILABLE.
        """
        if not jobs:
            return frozenset()
        try:
            return self._write_once(jobs, provenance)
        except _REFUSED as refusal:
            return self._write_in_parts(jobs, provenance, refusal)

    def _write_once(self, jobs: JobItems, provenance: OutcomeProvenance) -> frozenset[UUID]:
        if not self._expects_duplicates:
            try:
                return self._transaction(jobs, provenance)[0]
            except ROW_EXISTS:
                self._expects_duplicates = True
        deduplicating, duplicate_count = self._transaction(jobs, provenance)
        self._expects_duplicates = duplicate_count > 0
        return deduplicating

    def _transaction(
        self, jobs: JobItems, provenance: OutcomeProvenance
    ) -> tuple[frozenset[UUID], int]:
        """Return the jobs that deduplicate, and how many outcomes had their row already."""
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
                new, retry_count = self._failures.handle(cursor, new, locked)
            if self._expects_duplicates:
                new = missing_items(cursor, new, locked)
            if new is not admitted.jobs:
                sums = [sum_items(job_id, items) for job_id, items in new.items()]
            groups = [g for j, items in new.items() for g in provenance.group_items(j, items)]
            copy_items(cursor, groups, count_provenance(cursor, groups), locked)
            if has_failures:
                dead_count = record_dead_letters(connection, new, locked)
            mixed = {job_id for job_id in new if locked[job_id].is_mixed}
            count_and_settle(connection, sums, sum_by_model(groups, mixed) if mixed else ())
            stop_over_budget(connection, sums, locked)
        duplicate_count = _count(admitted.jobs) - _count(new) - retry_count
        measure_transaction(sums, _count(new), started)
        metrics.DUPLICATES.inc(duplicate_count)
        metrics.RETRIES_SCHEDULED.inc(retry_count)
        metrics.DEAD_ITEMS.inc(dead_count)
        metrics.IGNORED_AFTER_CLOSE.inc(admitted.ignored_count)
        metrics.UNKNOWN_JOB.inc(admitted.unknown_count)
        return frozenset(j for j in admitted.jobs if locked[j].deduplicates), duplicate_count

    def _write_in_parts(
        self, jobs: JobItems, provenance: OutcomeProvenance, refusal: Exception
    ) -> frozenset[UUID]:
        """Halve the group until the refused outcome is alone; its item fails without a body."""
        if _count(jobs) > 1:
            return frozenset().union(*[self.write(half, provenance) for half in _halves(jobs)])
        ((job_id, [item]),) = jobs.items()
        substitute = _unstorable(item)
        if item == substitute:
            raise refusal  # the substitute was refused too
        code = getattr(refusal, "sqlstate", None) or type(refusal).__name__
        LOG.error("result refused", extra={"job": job_id, "index": item.index, "code": code})
        deduplicating = self._write_once(
            {job_id: [substitute]}, provenance.replaced(job_id, item, substitute)
        )
        metrics.UNSTORABLE.inc()
        return deduplicating


def _unstorable(item: ItemOutcome) -> ItemOutcome:
    """Return a failed outcome in place of one that cannot be stored; nothing of it is billed."""
    return ItemOutcome(
        index=item.index,
        custom_id=None,  # may be the refused value; the input file has it
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


def copy_items(
    cursor: Cursor,
    groups: Sequence[ItemGroup],
    numbers: Mapping[tuple[UUID, Provenance], int],
    locked: Mapping[UUID, LockedJob],
) -> None:
    """Insert a row for every outcome, with the number of its provenance.

    Raises ROW_EXISTS when an item has its row already; OverflowError, UnicodeError or one of
    DATA_REJECTED when an outcome cannot be stored. The transaction must then be rolled back.
    """
    for group in groups:
        _check_numbers(group.items)
    now_ms = int(1000 * time.time())
    _observe_results(groups, now_ms)
    with cursor.copy(COPY_ITEMS) as copy:
        copy.set_types(COPY_TYPES)
        write = copy.write_row
        for job_id, items, provenance, has_run in groups:
            number = numbers[job_id, provenance] if provenance and has_run else None
            for row in _rows(job_id.bytes, locked[job_id].day, items, now_ms, number):
                write(row)


def _observe_results(groups: Sequence[ItemGroup], now_ms: int) -> None:
    """Count the time from an end to its row, once for each job."""
    last = {group.job_id: group.items[-1] for group in groups}
    for item in last.values():
        if ended_ms := item.ended_ms:
            _RESULT_SECONDS.observe(max(0, now_ms - ended_ms) / 1000)


def _rows(
    job: bytes, day: int, items: Sequence[ItemOutcome], now_ms: int, number: int | None
) -> Iterator[tuple[Any, ...]]:
    for i in items:
        ended_ms = i.ended_ms
        stages: tuple[int | None, ...] = _NO_STAGES
        if ended_ms:
            result_ms = now_ms - ended_ms
            if not 0 <= result_ms <= STAGE_MS_MAX:  # the clocks of two machines
                result_ms = 0 if result_ms < 0 else STAGE_MS_MAX
            stages = (i.queue_ms, i.batch_wait_ms, i.execution_ms, result_ms)
        message = i.error_message
        yield (
            job,
            day,
            i.index,
            i.outcome,
            i.status_code,
            i.attempt,
            i.input_tokens,
            i.output_tokens,
            i.cached_tokens,
            i.reasoning_tokens,
            i.custom_id,
            i.error_code,
            message if message is None else message.replace("\0", ""),
            i.body or None,
            i.body_key,
            *stages,
            number,
        )


def _check_numbers(items: Sequence[ItemOutcome]) -> None:
    """Raises OverflowError for a number that its column cannot hold.

    The driver would truncate it silently.
    """
    small = ([i.status_code for i in items], [i.attempt for i in items])
    large = (
        [i.input_tokens for i in items],
        [i.output_tokens for i in items],
        [i.cached_tokens for i in items],
        [i.reasoning_tokens for i in items],
    )
    if (
        min(map(min, small + large)) < 0
        or max(map(max, small)) > _SMALLINT_MAX
        or max(map(max, large)) > _INTEGER_MAX
    ):
        raise OverflowError("a number in an outcome does not fit its column")
