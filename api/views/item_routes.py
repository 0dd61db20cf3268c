"""Routes of items: their status one by one, derived where there is no row yet."""

import asyncio
import re
from typing import Annotated, Final, TypeAlias
from uuid import UUID

from fastapi import APIRouter, Depends, Request, Response

from api.auth.principals import PrincipalDep
from api.http.paging import LIMIT_DEFAULT, Limit
from api.http.responses import ApiError, json_response
from api.views.item_objects import ITEM, item_id, item_object
from api.views.view_services import ViewServices, ViewServicesDep
from core.clock import SystemClock
from core.ids import JOB, parse_public_id
from core.limits import CUSTOM_ID_CHARS_MAX
from jobs.store.keyset_pages import unknown_cursor
from results.views.item_names import ItemNames, find_index
from results.views.item_status import ItemQuery, ItemStatus, ItemView, read_items
from results.views.result_sequence import sequence_of
from results.views.result_sources import ResultSource, result_source
from results.views.timed_reads import SearchOverdueError, TimedReads

router = APIRouter()

_WINDOWS_MAX: Final = 10
"""Statements of one request; then a client goes on behind `last_id`, were the page empty or not."""

_SEARCH_S_MAX: Final = 20.0
"""Longest reading of one search: a file of a GiB may take longer, and others wait for its place."""

_ID: Final = re.compile(rf"{ITEM}_([0-9a-f]{{32}})([0-9a-f]{{8}})")


def _one_status(request: Request, status: ItemStatus | None = None) -> ItemStatus | None:
    if len(request.query_params.getlist("status")) > 1:
        raise ApiError(400, "Give one status.", code="invalid_value", param="status")
    return status


StatusOf: TypeAlias = Annotated[ItemStatus | None, Depends(_one_status)]


@router.get("/v1/batches/{batch_id}/items")
async def show_list(
    batch_id: str,
    principal: PrincipalDep,
    views: ViewServicesDep,
    status: StatusOf,
    limit: Limit = LIMIT_DEFAULT,
    after: str | None = None,
) -> Response:
    """List items in the order of the input, or those of one status."""
    wanted = parse_public_id(JOB, batch_id)
    source = await views.services.database.run_for_tenant(
        principal.tenant_id, result_source, principal.tenant_id, wanted
    )
    first = 0
    if after is not None:
        index = _index(source, after)
        if index is None:
            raise unknown_cursor()
        first = index + 1
    items, next_index = await _page(views, source, first=first, limit=limit, status=status)
    data = [item_object(source, item) for item in items]
    looked = item_id(source.job_id, next_index - 1) if next_index > first else after
    answer = {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": looked,
        "has_more": next_index < source.total_count,
    }
    return json_response(answer)


@router.get("/v1/batches/{batch_id}/items/{custom_id:path}")
async def show(
    batch_id: str, custom_id: str, principal: PrincipalDep, views: ViewServicesDep
) -> Response:
    """Show one item by its `custom_id`, or by its id."""
    wanted = parse_public_id(JOB, batch_id)
    database = views.services.database
    source = await database.run_for_tenant(
        principal.tenant_id, result_source, principal.tenant_id, wanted
    )
    index = _index(source, custom_id)
    if index is None:
        index = await _search(views, source, custom_id)
    items, _ = await _page(views, source, first=index, limit=1, status=None)
    (item,) = items
    shown = item_object(source, item)
    shown["custom_id"] = shown["custom_id"] or await _name(views, source, index)
    shown["sequence"] = await database.run_for_tenant(
        principal.tenant_id, sequence_of, source.job_id, index
    )
    return json_response(shown)


async def _page(
    views: ViewServices, source: ResultSource, *, first: int, limit: int, status: ItemStatus | None
) -> tuple[list[ItemView], int]:
    """Return items, and the index behind the last one that was looked at."""
    total = source.total_count
    if first >= total or _has_none(source, status):
        return [], total
    held = {} if source.is_terminal else await views.dispatched(source.job)
    items: list[ItemView] = []
    for _ in range(_WINDOWS_MAX):
        query = ItemQuery(source.job_id, source.day, total, first, limit - len(items), status)
        page = await views.services.database.run_for_tenant(
            source.tenant_id, read_items, query, held
        )
        items += page.items
        first = page.next_index
        if len(items) == limit or not page.has_more:
            break
    return items, first


def _has_none(source: ResultSource, status: ItemStatus | None) -> bool:
    """Whether the counters say already that no item has the status."""
    if status is None:
        return False
    if status.outcome is None:
        return source.ended_count == source.total_count
    return not getattr(source.job, status.value)


async def _search(views: ViewServices, source: ResultSource, custom_id: str) -> int:
    """Return the index of the item. Raises ApiError (404, 503)."""
    index: int | None = None
    if 0 < len(custom_id) <= CUSTOM_ID_CHARS_MAX and source.total_count:
        with views.searches.acquire(source.tenant_id):
            try:
                index = await asyncio.to_thread(find_index, _reads(views), source, custom_id)
            except SearchOverdueError:
                raise _overdue() from None
    if index is None or index >= source.total_count:
        raise ApiError(404, "No such item.", code="item_not_found")
    return index


def _overdue() -> ApiError:
    """Return the refusal of a search; official clients would let it read as long again."""
    return ApiError(
        503,
        "The search took too long; an item's id is found at once.",
        kind="service_unavailable_error",
        code=SearchOverdueError.code,
        headers={"retry-after": "30", "x-should-retry": "false"},
    )


async def _name(views: ViewServices, source: ResultSource, index: int) -> str | None:
    """Return the `custom_id` of an item without a row; None also when that takes too long."""

    def read() -> str | None:
        names = ItemNames(_reads(views), source)
        try:
            return names.at(index)
        except SearchOverdueError:
            return None
        finally:
            names.close()

    with views.searches.acquire(source.tenant_id):
        return await asyncio.to_thread(read)


def _reads(views: ViewServices) -> TimedReads:
    return TimedReads(views.services.objects, SystemClock(), time_s_max=_SEARCH_S_MAX)


def _index(source: ResultSource, text: str) -> int | None:
    """Return the index in an item's id; None when it is no id of an item of this job."""
    found = _ID.fullmatch(text)
    if found is None or UUID(hex=found[1]) != source.job_id:
        return None
    index = int(found[2], 16)
    return index if index < source.total_count else None
