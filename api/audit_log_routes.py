"""The route of the audit log: the actions in a tenant's name, and their seals."""

from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter, Response

from api.auth.authentication import TenantRequestDep
from api.http.paging import PageDep, page_response
from tenancy.audit_log import ENTRY
from tenancy.audit_reading import entry_fields, read_entries

router = APIRouter()


@router.get("/v1/audit_log")
async def show_list(request: TenantRequestDep, page: PageDep) -> Response:
    """List entries, newest first."""
    found = await request.run(read_entries, after=page.after_row(ENTRY), limit=page.limit)
    return page_response(found, entry_object)


def entry_object(row: sa.Row[Any]) -> dict[str, object]:
    """Return an entry as responses show it."""
    return {
        **entry_fields(row),
        "object": "audit_log.entry",
        "created_at": int(row.created_at.timestamp()),
    }
