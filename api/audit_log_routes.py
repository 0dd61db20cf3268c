"""The route of the audit log: the actions in a tenant's name, and their seals."""

from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter, Response

from api.auth.authentication import TenantRequestDep
from api.http.paging import LIMIT_DEFAULT, Limit, parse_after
from api.http.responses import json_response
from api.resources import page_object
from jobs.store.keyset_pages import unknown_cursor_error
from tenancy.audit_log import ENTRY
from tenancy.audit_reading import entry_fields, read_entries

router = APIRouter()


@router.get("/v1/audit_log")
async def show_list(
    request: TenantRequestDep, limit: Limit = LIMIT_DEFAULT, after: str | None = None
) -> Response:
    """List entries, newest first."""
    page = await request.run(read_entries, after=parse_after(ENTRY, after), limit=limit)
    if page is None:
        raise unknown_cursor_error()
    return json_response(page_object(*page, entry_object))


def entry_object(row: sa.Row[Any]) -> dict[str, object]:
    """Return an entry as responses show it."""
    return {
        **entry_fields(row),
        "object": "audit_log.entry",
        "created_at": int(row.created_at.timestamp()),
    }
