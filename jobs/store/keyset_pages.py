"""Keyset pagination: a page starts behind a row, so new rows do not shift later pages."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from jobs.errors import InvalidFieldError


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCursor:
    """The requested page of a tenant's rows."""

    limit: int
    after: UUID | None = None  # the last row of the previous page
    ascending: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """Rows in order, and whether more follow."""

    rows: list[sa.Row[Any]]
    has_more: bool


def read_page(
    connection: sa.Connection,
    query: sa.Select[Any],
    table: sa.Table,
    *,
    tenant_id: UUID,
    cursor: PageCursor,
) -> Page:
    """Return the page of `query`, whose rows come from `table`, oldest or newest first.

    Raises InvalidFieldError if `after` is not a row of this tenant; deleted rows are accepted.
    """
    if cursor.after is not None:
        key = (table.c.created_at, table.c.id)
        last_row = connection.execute(
            sa.select(*key).where(table.c.id == cursor.after, table.c.tenant_id == tenant_id)
        ).one_or_none()
        if last_row is None:
            raise unknown_cursor_error()
        row, last = sa.tuple_(*key), position_of(last_row, *key)
        query = query.where(row > last if cursor.ascending else row < last)
    found = connection.execute(page_query(query, table, tenant_id, cursor)).all()
    return Page(list(found[: cursor.limit]), len(found) > cursor.limit)


def position_of(row: sa.Row[*tuple[Any, ...]], *key: sa.Column[Any]) -> sa.Tuple:
    """Return the values of `row` in the columns `key`, to be compared with those of other rows."""
    return sa.tuple_(*(sa.literal(getattr(row, column.name), column.type) for column in key))


def page_query(
    query: sa.Select[Any], table: sa.Table, tenant_id: UUID, cursor: PageCursor
) -> sa.Select[Any]:
    """Return the query of one page and one more row, which shows whether another page follows."""
    key = (table.c.created_at, table.c.id)
    order = key if cursor.ascending else tuple(column.desc() for column in key)
    return query.where(table.c.tenant_id == tenant_id).order_by(*order).limit(cursor.limit + 1)


def unknown_cursor_error() -> InvalidFieldError:
    """Return the error of a malformed, unknown or foreign cursor."""
    return InvalidFieldError(
        "No such cursor. Use the id of the last object of the previous page.", param="after"
    )
