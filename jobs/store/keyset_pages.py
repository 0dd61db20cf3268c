"""Lists by keyset: a page begins behind a row, so rows that come meanwhile shift nothing."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from jobs.errors import InvalidFieldError


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCursor:
    """Which page of a tenant's rows is wanted."""

    limit: int
    after: UUID | None = None  # the last row of the page before
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

    Raises InvalidFieldError: `after` names no row of this tenant; a deleted one still counts.
    """
    if cursor.after is not None:
        place = connection.execute(
            sa.select(table.c.created_at).where(
                table.c.id == cursor.after, table.c.tenant_id == tenant_id
            )
        ).one_or_none()
        if place is None:
            raise unknown_cursor_error()
        query = query.where(_behind(table, place.created_at, cursor))
    found = connection.execute(page_query(query, table, tenant_id, cursor)).all()
    return Page(list(found[: cursor.limit]), len(found) > cursor.limit)


def page_query(
    query: sa.Select[Any], table: sa.Table, tenant_id: UUID, cursor: PageCursor
) -> sa.Select[Any]:
    """Return the query of one page and a row more, which tells whether another page follows."""
    key = (table.c.created_at, table.c.id)
    order = key if cursor.ascending else tuple(column.desc() for column in key)
    return query.where(table.c.tenant_id == tenant_id).order_by(*order).limit(cursor.limit + 1)


def unknown_cursor_error() -> InvalidFieldError:
    """Return the one refusal of a malformed, unknown or foreign cursor."""
    return InvalidFieldError("The cursor names nothing that you own.", param="after")


def _behind(table: sa.Table, created_at: object, cursor: PageCursor) -> sa.ColumnElement[bool]:
    row = sa.tuple_(table.c.created_at, table.c.id)
    place = sa.tuple_(
        sa.literal(created_at, table.c.created_at.type), sa.literal(cursor.after, table.c.id.type)
    )
    return row > place if cursor.ascending else row < place
