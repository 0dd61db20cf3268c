"""Dead letters as their owners see them: which items failed for good, why, and after what.

For every other tenant they do not exist.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from core.outcomes import Outcome
from jobs.errors import DeadLetterMissingError
from jobs.store.batches import find_job
from jobs.store.keyset_pages import Page, unknown_cursor
from jobs.tables.jobs import jobs
from jobs.tables.retries import dead_items, item_attempts
from results.finaliser.output_lines import ItemRow
from results.finaliser.row_decryption import RowDecrypter
from results.writer.failure_handling import stable_code
from storage.objects.object_store import ObjectStore
from storage.postgres.items import items

_BODY_BYTES: Final = 4096
"""Of an answer, in a list: enough for the code in an error envelope of usual length."""

_ITS_ROW: Final = sa.and_(
    items.c.job_day == dead_items.c.job_day,
    items.c.job_id == dead_items.c.job_id,
    items.c.item_index == dead_items.c.item_index,
)

_BATCH_SHOWS: Final = sa.exists(
    sa.select(1)
    .where(jobs.c.id == dead_items.c.job_id, jobs.c.deleted_at.is_(None))
    .offset(0)  # one probe a row: Postgres would else hash all jobs
)
"""Not of a batch that was deleted, whose rows wait to be removed."""

_SHOWN: Final = (items.c.custom_id, items.c.status_code, items.c.error_code, items.c.error_message)


@dataclass(frozen=True, slots=True)
class DeadLetterPosition:
    """Which item of which job."""

    job_id: UUID
    item_index: int


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """One execution that failed."""

    attempt: int
    status_code: int
    code: str
    failed_at: datetime


@dataclass(frozen=True, slots=True)
class DeadLetterView:
    """A dead letter with all its attempts, and what finding its line needs."""

    row: sa.Row[Any]
    attempts: list[FailedAttempt]


def list_dead_letters(
    connection: sa.Connection,
    tenant_id: UUID,
    *,
    job_id: UUID | None,
    after: DeadLetterPosition | None,
    limit: int,
) -> Page:
    """Return a page of dead letters: of one job by their index, or of all jobs the newest first.

    Raises JobMissingError, FieldRefusedError: `after` names none of them.
    """
    if job_id is not None:
        find_job(connection, tenant_id, job_id)
    query = dead_letters_query(tenant_id, job_id)
    if after is not None:
        place = connection.execute(
            sa.select(dead_items.c.failed_at).where(
                dead_items.c.tenant_id == tenant_id, *_is(after), *_of(job_id)
            )
        ).one_or_none()
        if place is None:
            raise unknown_cursor()
        query = query.where(_behind(after, place.failed_at, in_job=job_id is not None))
    found = connection.execute(query.limit(limit + 1)).all()
    return Page(list(found[:limit]), len(found) > limit)


def find_dead_letter(
    connection: sa.Connection, tenant_id: UUID, place: DeadLetterPosition | None
) -> DeadLetterView:
    """Return one dead letter. Raises DeadLetterMissingError, also for foreign ids."""
    if place is None:
        raise DeadLetterMissingError
    query = (
        sa.select(dead_items, *_SHOWN, items.c.body, items.c.body_key, items.c.copied_from)
        .add_columns(jobs.c.input_key, jobs.c.endpoint, jobs.c.zero_retention)
        .select_from(dead_items.outerjoin(items, _ITS_ROW))
        .join(jobs, jobs.c.id == dead_items.c.job_id)
        .where(dead_items.c.tenant_id == tenant_id, *_is(place), jobs.c.deleted_at.is_(None))
    )
    row = connection.execute(query).one_or_none()
    if row is None:
        raise DeadLetterMissingError
    recorded = sa.select(
        item_attempts.c.attempt,
        item_attempts.c.status_code,
        item_attempts.c.code,
        item_attempts.c.failed_at,
    ).where(item_attempts.c.job_id == place.job_id, item_attempts.c.item_index == place.item_index)
    tries = [
        FailedAttempt(*t) for t in connection.execute(recorded.order_by(item_attempts.c.attempt))
    ]
    if not tries or tries[-1].attempt < row.attempt:
        last = FailedAttempt(row.attempt, row.status_code or 0, code_of_row(row), row.failed_at)
        tries = [*tries, last]
    return DeadLetterView(row, tries)


def dead_letters_query(tenant_id: UUID, job_id: UUID | None) -> sa.Select[Any]:
    """Return the query of a list, in its order."""
    query = (
        sa.select(
            dead_items, *_SHOWN, sa.func.substring(items.c.body, 1, _BODY_BYTES).label("body")
        )
        .select_from(dead_items.outerjoin(items, _ITS_ROW))
        .where(dead_items.c.tenant_id == tenant_id, *_of(job_id), _BATCH_SHOWS)
    )
    if job_id is not None:
        return query.order_by(dead_items.c.item_index)
    newest_first = (dead_items.c.failed_at, dead_items.c.job_id, dead_items.c.item_index)
    return query.order_by(*(column.desc() for column in newest_first))


def readable_body(store: ObjectStore, row: sa.Row[Any]) -> bytes | None:
    """Return the answer of a row of `find_dead_letter`; None without one, or when its key is gone.

    Raises what a store raises. Reads it only for jobs whose answers are encrypted.
    """
    body: bytes | None = row.body
    if not row.zero_retention or body is None:
        return body
    answer = ItemRow(
        row.item_index,
        Outcome.FAILED.value,
        row.status_code,
        row.custom_id,
        row.error_code,
        row.error_message,
        body,
        None,
        row.copied_from,
    )
    return RowDecrypter(store, row.job_id).decrypt(answer).body


def code_of_row(row: sa.Row[Any]) -> str:
    """Return the stable code of the last attempt; `unknown` when its item row is gone."""
    if row.status_code is None:
        return "unknown"
    return stable_code(row.error_code, row.body or b"", row.status_code)


def _is(place: DeadLetterPosition) -> tuple[sa.ColumnElement[bool], ...]:
    return dead_items.c.job_id == place.job_id, dead_items.c.item_index == place.item_index


def _of(job_id: UUID | None) -> tuple[sa.ColumnElement[bool], ...]:
    return () if job_id is None else (dead_items.c.job_id == job_id,)


def _behind(
    after: DeadLetterPosition, failed_at: datetime, *, in_job: bool
) -> sa.ColumnElement[bool]:
    if in_job:
        return dead_items.c.item_index > after.item_index
    key = (dead_items.c.failed_at, dead_items.c.job_id, dead_items.c.item_index)
    values = (failed_at, after.job_id, after.item_index)
    literals = [sa.literal(v, c.type) for v, c in zip(values, key, strict=True)]
    return sa.tuple_(*key) < sa.tuple_(*literals)
