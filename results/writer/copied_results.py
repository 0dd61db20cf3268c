"""Gives copies (items identical to another item of their job) the result of their original.

The writer schedules these steps after each transaction of a job that deduplicates, and commits the
offsets of its records when all steps are done. After a crash in between, the records are read again
and the steps are repeated. Original and copy are both looked up in Postgres, so the result does not
depend on whether the copy was registered before its original ended.
"""

import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import UUID

import sqlalchemy as sa

from core.outcomes import Outcome
from results import metrics
from results.writer.counter_locks import LockedJob, lock_jobs, read_job_counters
from results.writer.counters import (
    count_and_settle,
    measure_transaction,
    stop_over_budget,
    sum_items,
)
from results.writer.failure_handling import record_dead_letters
from results.writer.open_work import WorkStep
from results.writer.record_groups import JobItems
from results.writer.statements import (
    COUNT_COPIES,
    FIND_COPIES_DUE,
    FIND_COPY_INDEXES,
    HAS_MORE_COPIES,
    INSERT_COPIES,
)
from storage.postgres.engines import Cursor, raw_cursor
from topics.records.records import CopiesDue, ItemOutcome

SLICE_ITEMS: Final = 5000
SLICE_BYTES: Final = 8 * 1024 * 1024
"""Bounds on the rows of one transaction and their bodies: one item can have a million copies."""

SEARCH_ITEMS_MAX: Final = 50_000
"""Copies that one search for missing rows examines: each costs an index probe, and one item or
record may concern millions of copies."""

_ALL_INDEXES: Final = range(2**31 - 1)  # bounded by the job's number of items


class DueCopies(NamedTuple):
    """An original that has its row, and the number of its copies without one."""

    original_index: int
    copy_count: int
    size_bytes: int  # of the original's body


@dataclass(frozen=True, slots=True)
class CopySlice:
    """Originals whose copies fit into one transaction, or one original that needs several."""

    originals: tuple[int, ...]
    count_max: int
    is_complete: bool  # False: the copies of the original need more transactions


def copy_slices(due: Sequence[DueCopies], *, items_max: int, bytes_max: int) -> Iterator[CopySlice]:
    """Divide copies into transactions within the bounds; one row always fits. Pure."""
    light: list[int] = []
    count = size = 0
    for one in due:
        its_size = one.copy_count * one.size_bytes
        if one.copy_count > items_max or its_size > bytes_max:
            fits = min(items_max, bytes_max // max(1, one.size_bytes))
            yield CopySlice((one.original_index,), max(1, fits), is_complete=False)
            continue
        if light and (count + one.copy_count > items_max or size + its_size > bytes_max):
            yield CopySlice(tuple(light), count, is_complete=True)
            light, count, size = [], 0, 0
        light.append(one.original_index)
        count += one.copy_count
        size += its_size
    if light:
        yield CopySlice(tuple(light), count, is_complete=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyWriter:
    """Writes the rows of copies. Not thread-safe."""

    engine: sa.Engine = field(kw_only=False)
    slice_items: int = SLICE_ITEMS
    slice_bytes: int = SLICE_BYTES
    search_items_max: int = SEARCH_ITEMS_MAX

    def copy_steps(self, jobs: JobItems, job_ids: Collection[UUID]) -> list[WorkStep]:
        """Return the steps that write the copies of these items, as far as the items have rows."""
        return [
            partial(
                self._find_due, job_id, _ALL_INDEXES, sorted({item.index for item in jobs[job_id]})
            )
            for job_id in job_ids
        ]

    def due_copy_steps(self, due: CopiesDue) -> list[WorkStep]:
        """Return the steps that write copies in an index range whose originals have rows."""
        return [partial(self._find_due, due.job_id, range(due.first_index, due.end_index), None)]

    def _find_due(self, job_id: UUID, within: range, originals: list[int] | None) -> list[WorkStep]:
        """Find copies without a row in a range: of all originals, or of some.

        It takes no lock, which would block other writers: each slice locks and checks again.
        """
        with self.engine.begin() as connection:
            cursor = raw_cursor(connection)
            job = read_job_counters(cursor, job_id)
            if job is None or job.closed_reason is not None:
                return []
            span = range(within.start, min(within.stop, job.total_count))
            if self._exceeds_search_limit(cursor, job_id, span, originals):
                size = self.search_items_max
                parts = (range(at, min(at + size, span.stop)) for at in span[::size])
                return [partial(self._find_due, job_id, part, originals) for part in parts]
            due = _due(cursor, job, span, originals)
        slices = copy_slices(due, items_max=self.slice_items, bytes_max=self.slice_bytes)
        return [partial(self._write, job_id, span, part) for part in slices]

    def _exceeds_search_limit(
        self, cursor: Cursor, job_id: UUID, span: range, originals: list[int] | None
    ) -> bool:
        """Whether one search may meet too many copies; most originals have only a few."""
        if len(span) <= self.search_items_max:
            return False
        if originals is None:
            return True
        parameters = [job_id, originals, span.start, span.stop, self.search_items_max]
        row = cursor.execute(HAS_MORE_COPIES, parameters, prepare=False).fetchone()
        return row == (True,)

    def _write(self, job_id: UUID, span: range, part: CopySlice) -> list[WorkStep]:
        """Write one slice; return the next step of an original that needs several."""
        last = self._transaction(job_id, span, part)
        if last is None or part.is_complete:
            return []
        return [partial(self._write, job_id, range(last + 1, span.stop), part)]

    def _transaction(self, job_id: UUID, span: range, part: CopySlice) -> int | None:
        """Return the last index that got its row; None when no copy was left."""
        started = time.perf_counter()
        with self.engine.begin() as connection:
            cursor = raw_cursor(connection)
            locked = lock_jobs(cursor, [job_id])
            job = locked.get(job_id)
            if job is None or job.closed_reason is not None:
                return None  # the close gives the remaining copies their rows
            rows, by_provenance = _inserted(cursor, job, span, part)
            if not rows:
                return None
            added = sum_items(job_id, rows)._replace(executed=0)  # copies cost nothing
            if failed := [row for row in rows if row.outcome is Outcome.FAILED]:
                metrics.DEAD_ITEMS.inc(record_dead_letters(connection, {job_id: failed}, locked))
            numbers, counts = list(by_provenance), list(by_provenance.values())
            cursor.execute(COUNT_COPIES, [numbers, counts, *[job_id] * 3], prepare=False)
            count_and_settle(connection, [added])
            stop_over_budget(connection, [added], locked)
        metrics.ITEMS_COPIED.inc(len(rows))
        measure_transaction([added], len(rows), started)
        return rows[-1].index


def _due(
    cursor: Cursor, job: LockedJob, span: range, originals: list[int] | None
) -> list[DueCopies]:
    own = [job.day, job.job_id]
    of_these = [] if originals is None else [originals]
    statement = FIND_COPIES_DUE.format(of_these=FIND_COPY_INDEXES if of_these else "")
    parameters = [*own, *own, job.job_id, *of_these, span.start, span.stop]
    cursor.execute(statement, parameters, prepare=False)
    return [DueCopies._make(row) for row in cursor]


def _inserted(
    cursor: Cursor, job: LockedJob, within: range, part: CopySlice
) -> tuple[list[ItemOutcome], Counter[int | None]]:
    """Insert a slice; return the new rows by index, and their number by that of the provenance.

    Failures have the first bytes of their body.
    """
    place: list[Any] = [job.day, job.job_id]
    span = [job.job_id, list(part.originals), within.start, within.stop, part.count_max]
    cursor.execute(INSERT_COPIES, [*place, *span, *place], prepare=False)
    rows: list[ItemOutcome] = []
    by_provenance: Counter[int | None] = Counter()
    for index, outcome, status_code, custom_id, error_code, body, number in cursor:
        by_provenance[number] += 1
        rows.append(
            ItemOutcome(
                index=index,
                custom_id=custom_id,
                outcome=Outcome(outcome),
                status_code=status_code,
                body=body or b"",
                error_code=error_code,
                attempt=0,  # a copy is not executed
            )
        )
    return sorted(rows, key=lambda item: item.index), by_provenance
