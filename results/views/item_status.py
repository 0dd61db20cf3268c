"""Reads items of a batch with their status, which is derived for items without a row.

    pending ──► queued ──► dispatched ──► succeeded | failed | cancelled | expired
                  ▲             │
                  └─ retrying ◄─┘

Pending: not emitted. Queued: on the log. Dispatched: in an unfinished batch of a replica.
Retrying: an execution failed and the next one is scheduled. A copy is pending or queued until its
original has ended.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from core.outcomes import Outcome
from jobs.estimates.waiting_reasons import PoolView, WaitingReason
from jobs.tables.jobs import job_cursors
from jobs.tables.retries import item_attempts, item_copies
from results.audit.recorded_totals import TOKENS
from storage.postgres.items import item_columns

WINDOW_ITEMS: Final = 10_000
"""Indexes that one statement examines when it filters by status."""


class ItemStatus(StrEnum):
    """The status of an item, as the API shows it."""

    PENDING = "pending"
    QUEUED = "queued"
    DISPATCHED = "dispatched"
    RETRYING = "retrying"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def outcome(self) -> Outcome | None:
        """The outcome with the name of this status; None while an item is open."""
        return Outcome.__members__.get(self.name)


@dataclass(frozen=True, slots=True)
class ItemFailure:
    """An execution that failed and was retried, or may have been."""

    attempt: int
    status_code: int
    code: str
    failed_at: datetime


@dataclass(frozen=True, slots=True)
class ItemView:
    """One item; `row` has its columns of `items`, None while it has no row."""

    index: int
    status: ItemStatus
    row: sa.Row[Any]
    replica_id: str | None = None  # of the replica that has the item now
    failures: Sequence[ItemFailure] = field(default_factory=list)
    is_copy: bool = False  # known of items without a row


@dataclass(frozen=True, slots=True)
class ItemPage:
    """Items in index order, and how far the index range was examined."""

    items: list[ItemView]
    next_index: int  # all indexes below it were examined
    has_more: bool


@dataclass(frozen=True, slots=True)
class ItemQuery:
    """Selects items of a job."""

    job_id: UUID
    day: int
    total_count: int
    first: int  # index
    limit: int
    status: ItemStatus | None = None
    has_copies: bool = False  # the job was deduplicated
    positions: Sequence[int] | None = None
    """In the order of emission, of the indexes from `first` to the end of the window; None: they
    are the indexes."""


_SHOWN: Final = item_columns(
    (
        *("outcome", "status_code", "attempt", "custom_id", "error_code", "error_message"),
        *(*TOKENS, "finished_at", "copied_from"),
        *("queue_ms", "batch_wait_ms", "execution_ms", "result_ms", "provenance"),
    )
)

_READ: Final = f"""
SELECT span.item_index, ended.*, waiting.attempt AS next_attempt, waiting.due_at,
    ran.model_version AS ran_version, ran.engine AS ran_engine
FROM generate_series(CAST(:first AS int), CAST(:last AS int)) AS span (item_index)
LEFT JOIN LATERAL (
    SELECT {_SHOWN} FROM items
    WHERE job_day = :day AND job_id = :job AND items.item_index = span.item_index LIMIT 1
) AS ended ON true
LEFT JOIN LATERAL (
    SELECT attempt, due_at FROM item_retries
    WHERE job_id = :job AND item_retries.item_index = span.item_index
    ORDER BY attempt DESC LIMIT 1
) AS waiting ON true
LEFT JOIN job_provenance ran ON ran.job_id = :job AND ran.number = ended.provenance
WHERE {{condition}}
ORDER BY span.item_index LIMIT :limit
"""  # noqa: S608  no outside input

_OPEN: Final = "ended.outcome IS NULL"
_EMITTED: Final = {
    False: "span.item_index < :emitted",
    True: "span.item_index = ANY(CAST(:emitted_indexes AS int[]))",
}
"""The condition that an item was emitted, by whether the query has positions."""


def _condition(status: ItemStatus | None, emitted: str) -> str:
    """Return the condition of a status; None: of every item."""
    waits = f"{_OPEN} AND waiting.attempt IS NULL"
    if status is None:
        return "true"
    if status.outcome is not None:
        return f"ended.outcome = {status.outcome.value}"
    return {
        ItemStatus.PENDING: f"{waits} AND NOT {emitted}",
        ItemStatus.QUEUED: f"{waits} AND {emitted}"
        " AND span.item_index <> ALL(CAST(:dispatched AS int[]))",
        # Only what was emitted can be dispatched.
        ItemStatus.DISPATCHED: f"{waits} AND span.item_index = ANY(CAST(:dispatched AS int[]))",
        ItemStatus.RETRYING: f"{_OPEN} AND waiting.attempt IS NOT NULL",
    }[status]


_STATEMENTS: Final = {
    (status, has_positions): sa.text(
        _READ.format(condition=_condition(status, emitted))
    ).bindparams(sa.bindparam("job", type_=sa.Uuid))
    for status in (None, *ItemStatus)
    for has_positions, emitted in _EMITTED.items()
}


def read_items(
    connection: sa.Connection, query: ItemQuery, dispatched: Mapping[int, str]
) -> ItemPage:
    """Return the next items; with a status filter, those among the next WINDOW_ITEMS indexes.

    `dispatched` maps indexes to the ids of the replicas that have them.
    """
    cursor = sa.select(job_cursors.c.item_index).where(job_cursors.c.job_id == query.job_id)
    emitted = connection.scalar(cursor) or 0
    emitted_indexes: Collection[int] = range(emitted)
    if query.positions is not None:
        emitted_indexes = {
            index for index, place in enumerate(query.positions, query.first) if place < emitted
        }
    first, span = _span(query, emitted, dispatched)
    last = min(first + span, query.total_count) - 1
    parameters = {
        "first": first,
        "last": last,
        "day": query.day,
        "job": query.job_id,
        "limit": query.limit,
        "emitted": emitted,
        "emitted_indexes": [*emitted_indexes] if query.positions is not None else [],
        "dispatched": list(dispatched),
    }
    statement = _STATEMENTS[query.status, query.positions is not None]
    names = statement.compile().params
    rows = connection.execute(statement, {n: v for n, v in parameters.items() if n in names}).all()
    is_full = len(rows) == query.limit
    next_index = rows[-1].item_index + 1 if is_full else last + 1
    failures = read_failures(connection, query.job_id, [row.item_index for row in rows])
    waiting = [row.item_index for row in rows if row.outcome is None]
    copies = _read_copies(connection, query.job_id, waiting) if query.has_copies else frozenset()
    return ItemPage(
        [
            ItemView(
                row.item_index,
                _status(row, emitted_indexes, dispatched),
                row,
                dispatched.get(row.item_index),
                failures.get(row.item_index, []),
                row.item_index in copies,
            )
            for row in rows
        ],
        next_index,
        next_index < query.total_count,
    )


def _span(query: ItemQuery, emitted: int, dispatched: Mapping[int, str]) -> tuple[int, int]:
    """Return the first index to examine and how many, skipping indexes that cannot match."""
    first = query.first
    if query.status is None:
        return first, query.limit
    if query.status is ItemStatus.PENDING and query.positions is None:
        first = max(first, emitted)
    if query.status is ItemStatus.DISPATCHED:
        later = [index for index in dispatched if index >= first]
        first = min(later, default=query.total_count)
    return first, WINDOW_ITEMS


def _status(
    row: sa.Row[Any], emitted: Collection[int], dispatched: Mapping[int, str]
) -> ItemStatus:
    if row.outcome is not None:
        return ItemStatus(Outcome(row.outcome).label)
    if row.next_attempt is not None:
        return ItemStatus.RETRYING
    if row.item_index in dispatched:
        return ItemStatus.DISPATCHED
    return ItemStatus.QUEUED if row.item_index in emitted else ItemStatus.PENDING


def _read_copies(connection: sa.Connection, job_id: UUID, indexes: Sequence[int]) -> frozenset[int]:
    """Return those of `indexes` that are copies of another item."""
    if not indexes:
        return frozenset()
    query = sa.select(item_copies.c.item_index).where(
        item_copies.c.job_id == job_id, item_copies.c.item_index.in_(indexes)
    )
    return frozenset(connection.scalars(query))


def waiting_reason(
    item: ItemView, block: WaitingReason | None, pool: PoolView
) -> WaitingReason | None:
    """Return why an item waits; None if it has a row or a replica has it.

    `block` keeps the whole job from running; off-peak hours keep only items that were not emitted.
    An item at a replica runs, or will when the replica comes to it; which of the two is not known.
    """
    if item.status.outcome is not None or item.status is ItemStatus.DISPATCHED:
        return None
    if block is not None and (block.holds_emitted or item.status is ItemStatus.PENDING):
        return block
    if item.is_copy:
        return WaitingReason.COPY
    if item.status is ItemStatus.RETRYING:
        return WaitingReason.BACKOFF
    return pool.not_emitted if item.status is ItemStatus.PENDING else pool.on_log


def read_failures(
    connection: sa.Connection, job_id: UUID, indexes: Sequence[int]
) -> dict[int, list[ItemFailure]]:
    """Return the recorded failures of items by index, those of each item in order."""
    if not indexes:
        return {}
    query = sa.select(item_attempts).where(
        item_attempts.c.job_id == job_id, item_attempts.c.item_index.in_(indexes)
    )
    found: dict[int, list[ItemFailure]] = {}
    for row in connection.execute(
        query.order_by(item_attempts.c.item_index, item_attempts.c.attempt)
    ):
        failure = ItemFailure(row.attempt, row.status_code, row.code, row.failed_at)
        found.setdefault(row.item_index, []).append(failure)
    return found
