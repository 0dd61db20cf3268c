"""Queries dead letters for their owners: items that failed for good, with their attempts.

Other tenants cannot see that they exist.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from core.outcomes import Outcome
from jobs.errors import DeadLetterNotFoundError
from jobs.store.batches import find_job
from jobs.store.keyset_pages import Page, position_of, unknown_cursor_error
from jobs.tables.jobs import jobs
from jobs.tables.retries import dead_items
from results.finaliser.item_rows import RowDecrypter
from results.finaliser.output_lines import ItemRow
from results.views.item_status import ItemFailure, read_failures
from results.writer.failure_handling import stable_code
from storage.objects.object_store import ObjectStore
from storage.postgres.items import items

_BODY_BYTES: Final = 4096
"""Bytes of a body in a list: enough for the code in a usual error envelope."""


def _item_row(days: Collection[int]) -> sa.ColumnElement[bool]:
    """Join dead letters of `days` with their rows; the values restrict it to partitions."""
    return sa.and_(
        items.c.job_day.in_(days),
        items.c.job_day == dead_items.c.job_day,
        items.c.job_id == dead_items.c.job_id,
        items.c.item_index == dead_items.c.item_index,
    )


_IS_VISIBLE: Final = sa.exists(
    sa.select(1)
    .where(jobs.c.id == dead_items.c.job_id, jobs.c.deleted_at.is_(None))
    .offset(0)  # one index probe per row: otherwise Postgres hashes all jobs
)
"""Hides dead letters of deleted batches whose rows are not yet removed."""

_AGE: Final = (dead_items.c.failed_at, dead_items.c.job_id, dead_items.c.item_index)
_SHOWN: Final = (items.c.custom_id, items.c.status_code, items.c.error_code, items.c.error_message)


@dataclass(frozen=True, slots=True)
class DeadLetterPosition:
    """The item that a dead letter belongs to."""

    job_id: UUID
    item_index: int


@dataclass(frozen=True, slots=True)
class DeadLetterView:
    """A dead letter with its attempts; `row` also has the columns that locate its input line."""

    row: sa.Row[Any]
    attempts: list[ItemFailure]


def list_dead_letters(
    connection: sa.Connection,
    tenant_id: UUID,
    *,
    job_id: UUID | None,
    after: DeadLetterPosition | None,
    limit: int,
) -> Page:
    """Return a page of dead letters: of one job by index, or of all jobs newest first.

    Raises JobNotFoundError, and InvalidFieldError when `after` names no dead letter.
    """
    if job_id is not None:
        find_job(connection, tenant_id, job_id)
    where = [dead_items.c.tenant_id == tenant_id, *_of(job_id), _IS_VISIBLE]
    if after is not None:
        is_after = (dead_items.c.tenant_id == tenant_id, *_is(after), *_of(job_id))
        row = connection.execute(sa.select(*_AGE).where(*is_after)).one_or_none()
        if row is None:
            raise unknown_cursor_error()
        is_older = sa.tuple_(*_AGE) < position_of(row, *_AGE)
        follows = is_older if job_id is None else dead_items.c.item_index > after.item_index
        where.append(follows)
    order = [column.desc() for column in _AGE] if job_id is None else [dead_items.c.item_index]
    of_page = sa.select(dead_items.c.job_day).where(*where).order_by(*order).limit(limit + 1)
    days = set(connection.scalars(of_page))
    body = sa.func.substring(items.c.body, 1, _BODY_BYTES).label("body")
    query = (
        sa.select(dead_items, *_SHOWN, body)
        .select_from(dead_items.outerjoin(items, _item_row(days)))
        .where(*where)
        .order_by(*order)
    )
    found = connection.execute(query.limit(limit + 1)).all()
    return Page(list(found[:limit]), len(found) > limit)


def find_dead_letter(
    connection: sa.Connection, tenant_id: UUID, position: DeadLetterPosition | None
) -> DeadLetterView:
    """Return one dead letter. Raises DeadLetterNotFoundError, also for foreign ids."""
    if position is None:
        raise DeadLetterNotFoundError
    is_its = (dead_items.c.tenant_id == tenant_id, *_is(position))
    days = connection.scalars(sa.select(dead_items.c.job_day).where(*is_its)).all()
    query = (
        sa.select(dead_items, *_SHOWN, items.c.body, items.c.body_key, items.c.copied_from)
        .add_columns(jobs.c.input_key, jobs.c.endpoint, jobs.c.zero_retention)
        .select_from(dead_items.outerjoin(items, _item_row(days)))
        .join(jobs, jobs.c.id == dead_items.c.job_id)
        .where(*is_its, jobs.c.deleted_at.is_(None))
    )
    row = connection.execute(query).one_or_none()
    if row is None:
        raise DeadLetterNotFoundError
    index = position.item_index
    attempts = read_failures(connection, position.job_id, [index]).get(index, [])
    if not attempts or attempts[-1].attempt < row.attempt:
        last = ItemFailure(row.attempt, row.status_code or 0, code_of_row(row), row.failed_at)
        attempts = [*attempts, last]
    return DeadLetterView(row, attempts)


def readable_body(store: ObjectStore, row: sa.Row[Any]) -> bytes | None:
    """Return the body of a row of `find_dead_letter`; None without one, or if its key is destroyed.

    Reads the store only for encrypted bodies. Raises what a store raises.
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
    """Return the stable code of the last attempt; `unknown` without an item row."""
    if row.status_code is None:
        return "unknown"
    return stable_code(row.error_code, row.body or b"", row.status_code)


def _is(position: DeadLetterPosition) -> tuple[sa.ColumnElement[bool], ...]:
    return dead_items.c.job_id == position.job_id, dead_items.c.item_index == position.item_index


def _of(job_id: UUID | None) -> tuple[sa.ColumnElement[bool], ...]:
    return () if job_id is None else (dead_items.c.job_id == job_id,)
