"""Routes of operators for tenants in quarantine on a pool."""

from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter, Response

from api.admin.admin_list_routes import page_by_id
from api.admin.operator_requests import AdminRequestDep, OperatorRequestDep
from api.http.errors import ApiError
from api.http.paging import PageDep
from api.http.responses import json_response
from api.resources import seconds
from core.ids import JOB, QUARANTINE, TENANT, parse_public_id, public_id
from jobs.store.tenant_quarantines import end_quarantine, list_quarantines

router = APIRouter()


@router.get("/v1/admin/quarantines")
async def show_list(request: OperatorRequestDep, page: PageDep) -> Response:
    """List the tenants whose bulk jobs wait on a pool, by id."""
    rows = await request.run(list_quarantines)
    return page_by_id((quarantine_object(row) for row in rows), page)


@router.delete("/v1/admin/quarantines/{quarantine_id}")
async def end(quarantine_id: str, request: AdminRequestDep) -> Response:
    """End a quarantine: the tenant's bulk jobs on the pool go on within seconds."""
    parsed_id = parse_public_id(QUARANTINE, quarantine_id)

    def work(connection: sa.Connection) -> sa.Row[Any] | None:
        if parsed_id is None:
            return None
        return end_quarantine(connection, parsed_id, request.operator)

    row = await request.run(work)
    if row is None:
        raise ApiError(404, "No active quarantine has this id.", code="quarantine_not_found")
    return json_response(quarantine_object(row))


def quarantine_object(row: Any) -> dict[str, object]:
    """Return a quarantine; `batch_id` is the last batch that exceeded its crash budget."""
    return {
        "id": public_id(QUARANTINE, row.id),
        "object": "quarantine",
        "created_at": seconds(row.began_at),
        "ends_at": seconds(row.ends_at),
        "tenant_id": public_id(TENANT, row.tenant_id),
        "tenant": row.tenant,
        "pool": row.pool,
        "batch_id": public_id(JOB, row.job_id),
    }
