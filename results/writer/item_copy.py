"""Inserts item rows with COPY, and finds which items have their row already."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from results.writer.counter_locks import LockedJob
from results.writer.record_groups import JobItems
from results.writer.statements import COPY_ITEMS, COPY_TYPES, FIND_EXISTING
from storage.postgres.engines import Cursor
from topics.records.records import ItemOutcome

_SMALLINT_MAX: Final = 2**15 - 1
_INTEGER_MAX: Final = 2**31 - 1


def copy_items(cursor: Cursor, jobs: JobItems, locked: Mapping[UUID, LockedJob]) -> None:
    """Insert a row for every outcome.

    Raises ROW_EXISTS when an item has its row already; OverflowError, UnicodeError or one of
    DATA_REJECTED when an outcome cannot be stored. The transaction must then be rolled back.
    """
    for items in jobs.values():
        _check_numbers(items)
    with cursor.copy(COPY_ITEMS) as copy:
        copy.set_types(COPY_TYPES)
        write = copy.write_row
        for job_id, items in jobs.items():
            for row in _rows(job_id.bytes, locked[job_id].day, items):
                write(row)


def missing_items(cursor: Cursor, jobs: JobItems, locked: Mapping[UUID, LockedJob]) -> JobItems:
    """Return the first outcome of each item that has no row yet."""
    missing: JobItems = {}
    for job_id, items in jobs.items():
        seen = existing_indexes(cursor, [item.index for item in items], locked[job_id])
        kept = []
        for item in items:
            if item.index not in seen:
                seen.add(item.index)
                kept.append(item)
        if kept:
            missing[job_id] = kept
    return missing


def existing_indexes(cursor: Cursor, indexes: list[int], job: LockedJob) -> set[int]:
    """Return which of `indexes` have their row."""
    cursor.execute(FIND_EXISTING, [indexes, job.day, job.job_id], prepare=False)
    return {index for (index,) in cursor}


def _rows(job: bytes, day: int, items: Sequence[ItemOutcome]) -> Iterator[tuple[Any, ...]]:
    for i in items:
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
