"""Pages of lists: their parameters and their responses."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

import sqlalchemy as sa
from fastapi import Depends, Query, Response

from api.http.responses import json_response
from api.resources import page_object
from core.ids import parse_public_id
from core.limits import LIST_LIMIT_MAX
from jobs.store.keyset_pages import PageCursor, unknown_cursor_error


@dataclass(frozen=True, slots=True)
class PageParameters:
    """The page that a request asks for. Routes get it as `PageDep`."""

    limit: int
    after: str | None  # id of the last object of the page before

    def after_row(self, prefix: str) -> UUID | None:
        """Return the row before the page; None for the first page. Raises InvalidFieldError."""
        return parse_after(prefix, self.after)

    def cursor(self, prefix: str) -> PageCursor:
        """Return the page of a tenant's rows. Raises InvalidFieldError."""
        return PageCursor(limit=self.limit, after=self.after_row(prefix))


async def _page(
    limit: Annotated[int, Query(ge=1, le=LIST_LIMIT_MAX)] = 20, after: str | None = None
) -> PageParameters:
    return PageParameters(limit, after)


PageDep = Annotated[PageParameters, Depends(_page)]


def parse_after(prefix: str, after: str | None) -> UUID | None:
    """Return the row before the page; None for the first page. Raises InvalidFieldError."""
    if after is None:
        return None
    row_id = parse_public_id(prefix, after)
    if row_id is None:
        raise unknown_cursor_error()
    return row_id


def page_response(
    found: tuple[list[sa.Row[Any]], bool] | None, show: Callable[[sa.Row[Any]], dict[str, object]]
) -> Response:
    """Return rows as a page. Raises InvalidFieldError for None: the cursor names no row."""
    if found is None:
        raise unknown_cursor_error()
    return json_response(page_object(*found, show))
