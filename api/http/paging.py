"""Parameters of a page of a list."""

from typing import Annotated, Final, TypeAlias
from uuid import UUID

from fastapi import Query

from core.ids import parse_public_id
from core.limits import LIST_LIMIT_MAX
from jobs.store.keyset_pages import unknown_cursor_error

LIMIT_DEFAULT: Final = 20

Limit: TypeAlias = Annotated[int, Query(ge=1, le=LIST_LIMIT_MAX)]


def parse_after(prefix: str, after: str | None) -> UUID | None:
    """Return the row before the page; None for the first page. Raises InvalidFieldError."""
    if after is None:
        return None
    row_id = parse_public_id(prefix, after)
    if row_id is None:
        raise unknown_cursor_error()
    return row_id
