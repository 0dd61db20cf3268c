"""Failed outcomes: schedules a retry, or records a dead letter when the item has failed for good.

Runs only for groups with failures, in the writer's transaction and under its lock on the job, so
that a redelivered failure has its effect once (ADR 20).
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import msgspec
import sqlalchemy as sa

from core.outcomes import Outcome
from jobs.recovery.retry_policy import RetryRules, backoff_s, has_attempts_left
from jobs.store.outbox import outbox_insert
from results.writer.counter_locks import LockedJob, existing_indexes
from results.writer.record_groups import JobItems
from results.writer.statements import (
    FIND_ATTEMPTS,
    INSERT_DEAD_ITEMS,
    RECORD_ATTEMPTS,
    SCHEDULE_RETRIES,
)
from storage.postgres.engines import Cursor, raw_cursor
from topics.records.catalogue import DEAD_LETTERS
from topics.records.codec import encode
from topics.records.dead_items import DeadItem, DeadItems, FailedItemAttempt
from topics.records.records import ItemOutcome

_RECORD_ITEMS_MAX: Final = 250
_RECORD_BYTES_MAX: Final = 500_000
"""Bound on the items of one dead-letter record; one with 100 attempts and a long id has 10 KB."""

_CODE: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class _Error(msgspec.Struct):
    code: str | None = None


class _Envelope(msgspec.Struct):
    error: _Error


_ENVELOPE: Final = msgspec.json.Decoder(_Envelope)


@dataclass(frozen=True, slots=True)
class FailureHandler:
    """Decides between retry and final failure; `fraction` is uniform in [0, 1)."""

    rules: RetryRules
    fraction: Callable[[], float]

    def handle(
        self, cursor: Cursor, jobs: JobItems, locked: Mapping[UUID, LockedJob]
    ) -> tuple[JobItems, int]:
        """Record retryable failures: schedule the next attempt, or make the last one final.

        Returns the final outcomes, and the number of failures scheduled for another attempt.

        The first final outcome of an item on the log counts, however the log was split into groups:
        outcomes after it, or of an item that has its row, change nothing. A failure with attempts
        left is also dropped when its group holds a final outcome of the same item.
        """
        handled: JobItems = {}
        retry_count = 0
        for job_id, items in jobs.items():
            if not any(item.retryable for item in items):  # the usual case
                handled[job_id] = items
                continue
            recorded = self._record(cursor, locked[job_id], self._candidates(items))
            final, again = [], []
            for position, item in enumerate(items):
                if not item.retryable:
                    final.append(item)
                elif position not in recorded:
                    continue
                elif has_attempts_left(item.attempt, self.rules):
                    again.append(item)
                else:
                    final.append(item)  # itself: its provenance is known by its identity
            self._schedule(cursor, job_id, again)
            retry_count += len(again)
            if final:
                handled[job_id] = final
        return handled, retry_count

    def _candidates(self, items: Sequence[ItemOutcome]) -> dict[int, ItemOutcome]:
        """Return the failures that may have an effect, by their positions in `items`."""
        final = {item.index for item in items if not item.retryable}
        ended: set[int] = set()
        failures = {}
        for position, item in enumerate(items):
            if not item.retryable:
                ended.add(item.index)
            elif item.index not in (
                final if has_attempts_left(item.attempt, self.rules) else ended
            ):
                failures[position] = item
        return failures

    def _record(
        self, cursor: Cursor, job: LockedJob, failures: Mapping[int, ItemOutcome]
    ) -> set[int]:
        """Record new failures of items without a row; return their positions."""
        if not failures:
            return set()
        known = existing_indexes(cursor, [f.index for f in failures.values()], job)
        failures = {position: f for position, f in failures.items() if f.index not in known}
        if not failures:
            return set()
        columns = zip(
            *[(f.index, f.attempt, f.status_code, code_of(f)) for f in failures.values()],
            strict=True,
        )
        cursor.execute(RECORD_ATTEMPTS, [job.job_id, *map(list, columns)], prepare=False)
        new = set(cursor)
        positions = set()
        for position, failure in failures.items():
            if (failure.index, failure.attempt) in new:
                new.discard((failure.index, failure.attempt))
                positions.add(position)
        return positions

    def _schedule(self, cursor: Cursor, job_id: UUID, failures: Sequence[ItemOutcome]) -> None:
        if not failures:
            return
        columns = [
            [f.index for f in failures],
            [f.attempt + 1 for f in failures],
            [backoff_s(f.attempt, self.fraction(), self.rules) for f in failures],
            [_line_offset(f) for f in failures],
        ]
        cursor.execute(SCHEDULE_RETRIES, [*columns, job_id], prepare=False)


def record_dead_letters(
    connection: sa.Connection, jobs: JobItems, locked: Mapping[UUID, LockedJob]
) -> int:
    """Insert a dead letter for every failed item of a batch and announce it; return how many.

    Call it in the transaction that inserted the item rows, with the items that were inserted.
    """
    cursor = raw_cursor(connection)
    count = 0
    for job_id, items in jobs.items():
        dead = [item for item in items if item.outcome is Outcome.FAILED]
        if not dead:
            continue
        columns = [
            [item.index for item in dead],
            [item.attempt for item in dead],
            [_line_offset(item) for item in dead],
        ]
        day = locked[job_id].day
        cursor.execute(INSERT_DEAD_ITEMS, [day, *columns, job_id], prepare=False)
        inserted = cursor.fetchall()
        if not inserted:
            continue
        count += len(inserted)
        tenant_id, now_s = inserted[0]
        for part in split_for_records(_letters(cursor, job_id, dead, now_s)):
            record = DeadItems(job_id, day, tenant_id, part)
            connection.execute(outbox_insert(DEAD_LETTERS, record, job_id=job_id))
    return count


def split_for_records(letters: Sequence[DeadItem]) -> Iterator[list[DeadItem]]:
    """Yield the letters in order, divided into lists that fit into one record."""
    part: list[DeadItem] = []
    part_bytes = 0
    for letter in letters:
        letter_bytes = len(encode(letter))
        is_full = len(part) == _RECORD_ITEMS_MAX or part_bytes + letter_bytes > _RECORD_BYTES_MAX
        if part and is_full:
            yield part
            part, part_bytes = [], 0
        part.append(letter)
        part_bytes += letter_bytes
    if part:
        yield part


def code_of(failure: ItemOutcome) -> str:
    """Return the stable code of a failure, see `stable_code`."""
    return stable_code(failure.error_code, failure.body, failure.status_code)


def stable_code(own_code: str | None, body: bytes, status_code: int) -> str:
    """Return Millrace's own code, else the code in the response's error envelope, else `http_<n>`.

    A code from an upstream response is used only when it looks like one.
    """
    code = own_code or _answer_code(body)
    return code if code and _CODE.fullmatch(code) else f"http_{status_code}"


def _letters(
    cursor: Cursor, job_id: UUID, dead: Sequence[ItemOutcome], now_s: float
) -> list[DeadItem]:
    """Return each item with its attempts; a non-retryable failure has only its last one."""
    cursor.execute(FIND_ATTEMPTS, [job_id, [item.index for item in dead]], prepare=False)
    attempts: dict[int, list[FailedItemAttempt]] = {}
    for index, attempt, status_code, code, at_s in cursor:
        attempts.setdefault(index, []).append(FailedItemAttempt(attempt, status_code, code, at_s))
    letters = []
    for item in dead:
        failed = attempts.get(item.index, [])
        if not failed or failed[-1].attempt < item.attempt:
            last = FailedItemAttempt(item.attempt, item.status_code, code_of(item), now_s)
            failed = [*failed, last]
        letters.append(DeadItem(item.index, item.custom_id, failed))
    return letters


def _answer_code(body: bytes) -> str | None:
    try:
        return _ENVELOPE.decode(body).error.code
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _line_offset(item: ItemOutcome) -> int | None:
    """Return the byte offset of the item's line if known; 0 means unknown but for the first."""
    return item.offset if item.offset > 0 or item.index == 0 else None
