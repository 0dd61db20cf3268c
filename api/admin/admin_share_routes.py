"""Route of operators for the tenants of a pool: what each is due, and what it was served."""

from typing import Annotated, Any, Literal

import sqlalchemy as sa
from fastapi import APIRouter, Query, Response

from api.admin.admin_list_routes import ID_CHARS_MAX
from api.admin.operator_requests import OperatorRequestDep
from api.http.errors import ApiError
from api.http.paging import PageDep
from api.http.responses import json_response
from api.online.online_runtime import OnlineRuntime
from api.online.served_shares import ServedTenant
from api.resources import page_object
from core.ids import TENANT, public_id
from core.tenant_claims import reserved_share
from jobs.store.keyset_pages import unknown_cursor_error
from tenancy.listings import tenants_by_id

router = APIRouter()

AGE_S_MAX = 10.0
"""Age of the last report of any batcher from which the numbers are not shown."""


@router.get("/v1/admin/pools/{pool}/tenants")
async def show_tenants(
    pool: str,
    request: OperatorRequestDep,
    page: PageDep,
    job_class: Annotated[Literal["bulk", "interactive"], Query(alias="class")] = "bulk",
) -> Response:
    """List the tenants of a pool that wait or were served in the last minute, by id.

    Raises ApiError (503) while no batcher reports.
    """
    online: OnlineRuntime | None = request.http.app.state.online
    now_s = 0.0 if online is None else online.clock.monotonic_s()
    age_s = None if online is None else online.served.age_s(now_s=now_s)
    if online is None or age_s is None or age_s > AGE_S_MAX:
        message = "No batcher has reported what it serves for a while. Try again in some seconds."
        raise ApiError(503, message, kind="api_error", code="service_unknown")
    if page.after is not None and len(page.after) > ID_CHARS_MAX:
        raise unknown_cursor_error()
    served = {
        public_id(TENANT, one.tenant_id): one
        for one in online.served.tenants(pool, job_class, now_s=now_s)
    }
    names = [name for name in sorted(served) if page.after is None or name > page.after]
    shown = {name: served[name] for name in names[: page.limit]}
    rows = await request.run(tenants_by_id, [one.tenant_id for one in shown.values()])
    objects = [
        _served_object(pool, job_class, one, rows[one.tenant_id], age_s)
        for one in shown.values()
        if one.tenant_id in rows  # else it was deleted
    ]
    answer = page_object(objects, len(names) > page.limit, lambda one: one)
    return json_response({**answer, "last_id": next(reversed(shown), None)})


def _served_object(
    pool: str, job_class: str, served: ServedTenant, row: sa.Row[Any], age_s: float
) -> dict[str, object]:
    return {
        "id": public_id(TENANT, served.tenant_id),
        "object": "pool.tenant",
        "pool": pool,
        "class": job_class,
        "name": row.name,
        "weight": row.weight,
        "reserved_share": reserved_share(row.reserved_shares, pool),
        "priority_class": row.priority_class,
        "waiting_items": served.waiting,
        "tokens_per_minute": round(served.tokens),
        "served_share": round(served.share, 4),
        "virtual_time": served.virtual_time,
        "lead": served.lead,
        "age_s": round(age_s, 1),
    }
