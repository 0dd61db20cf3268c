"""Route of operators for the tenants of a pool: what each is due, and what it was served."""

import asyncio
from bisect import bisect_right
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

RETRY_AFTER_S = 5
"""Told while no batcher reports: a batcher that starts needs some seconds."""

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
        raise ApiError(
            503,
            message,
            kind="service_unavailable_error",
            code="service_unknown",
            headers={"retry-after": str(RETRY_AFTER_S)},
        )
    if page.after is not None and len(page.after) > ID_CHARS_MAX:
        raise unknown_cursor_error()
    # In a thread: a pool may have tens of thousands of tenants.
    served = await asyncio.to_thread(online.served.tenants, pool, job_class, now_s=now_s)
    start = 0 if page.after is None else bisect_right(served, page.after, key=_name)
    shown = served[start : start + page.limit]
    rows = await request.run(tenants_by_id, [one.tenant_id for one in shown])
    objects = [
        _served_object(pool, job_class, one, rows[one.tenant_id], age_s)
        for one in shown
        if one.tenant_id in rows  # else it was deleted
    ]
    answer = page_object(objects, len(served) > start + page.limit, lambda one: one)
    return json_response({**answer, "last_id": _name(shown[-1]) if shown else None})


def _name(served: ServedTenant) -> str:
    return public_id(TENANT, served.tenant_id)


def _served_object(
    pool: str, job_class: str, served: ServedTenant, row: sa.Row[Any], age_s: float
) -> dict[str, object]:
    return {
        "id": _name(served),
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
