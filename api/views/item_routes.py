"""Routes of items: the status of each item, derived while it has no row."""

import asyncio
import re
from typing import Annotated, Any, Final, TypeAlias
from uuid import UUID

from fastapi import APIRouter, Depends, Request, Response

from api.auth.authentication import TenantRequestDep
from api.http.errors import ApiError
from api.http.paging import PageDep
from api.http.responses import json_response
from api.resources import failure_object, seconds, usage_object
from api.views.job_estimates import ItemWaiting
from api.views.view_services import ViewServices, ViewServicesDep
from core.clock import SystemClock
from core.errors import MillraceError
from core.ids import JOB, parse_public_id, public_id
from core.limits import CUSTOM_ID_CHARS_MAX
from core.stages import Stage
from jobs.errors import InvalidFieldError
from jobs.estimates.job_eta import is_running
from jobs.ordering.ordered_files import job_positions
from jobs.store.keyset_pages import unknown_cursor_error
from results.finaliser.line_provenance import shown_provenance
from results.finaliser.output_lines import ERROR_MESSAGES
from results.views.item_custom_ids import ItemCustomIds, SearchOverdueError, TimedReads, find_index
from results.views.item_status import (
    WINDOW_ITEMS,
    ItemQuery,
    ItemStatus,
    ItemView,
    read_items,
    waiting_reason,
)
from results.views.result_sources import ResultSource, result_source
from results.views.sequenced_lines import sequence_of
from storage.objects.errors import ObjectStoreUnavailableError

router = APIRouter()

_WINDOWS_MAX: Final = 10
"""Queries of one request. A client continues after `last_id`, even if the page is empty."""

_SEARCH_S_MAX: Final = 20.0
"""Time limit of a search: a file of a GiB may take longer, and other searches wait for the slot."""

ITEM: Final = f"{JOB}_req"
"""Prefix of item ids. The `id` of a line in a result file has it, too."""


_ID: Final = re.compile(rf"{ITEM}_([0-9a-f]{{32}})([0-9a-f]{{8}})")


async def _one_status(request: Request, status: ItemStatus | None = None) -> ItemStatus | None:
    if len(request.query_params.getlist("status")) > 1:
        raise InvalidFieldError("Filter by at most one status.", param="status")
    return status


StatusOf: TypeAlias = Annotated[ItemStatus | None, Depends(_one_status)]


@router.get("/v1/batches/{batch_id}/items")
async def show_list(
    batch_id: str,
    request: TenantRequestDep,
    views: ViewServicesDep,
    status: StatusOf,
    page: PageDep,
) -> Response:
    """List items in the order of the input, optionally those of one status."""
    source = await request.run(result_source, parse_public_id(JOB, batch_id))
    first, after = 0, page.after
    if after is not None:
        index = _index(source, after)
        if index is None:
            raise unknown_cursor_error()
        first = index + 1
    items, next_index = await _page(views, source, first=first, limit=page.limit, status=status)
    waiting = await _waiting(views, source)
    data = [item_object(source, item, waiting) for item in items]
    last_read_id = item_id(source.job_id, next_index - 1) if next_index > first else after
    answer = {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": last_read_id,
        "has_more": next_index < source.total_count,
    }
    return json_response(answer)


@router.get("/v1/batches/{batch_id}/items/{custom_id:path}")
async def show(
    batch_id: str, custom_id: str, request: TenantRequestDep, views: ViewServicesDep
) -> Response:
    """Show an item by its `custom_id` or its id."""
    source = await request.run(result_source, parse_public_id(JOB, batch_id))
    index = _index(source, custom_id)
    if index is None:
        index = await _search(views, source, custom_id)
    items, _ = await _page(views, source, first=index, limit=1, status=None)
    (item,) = items
    shown = item_object(source, item, await _waiting(views, source))
    shown["custom_id"] = shown["custom_id"] or await _read_custom_id(views, source, index)
    shown["sequence"] = await request.services.database.run_for_tenant(
        source.tenant_id, sequence_of, source.job_id, index
    )
    return json_response(shown)


async def _waiting(views: ViewServices, source: ResultSource) -> ItemWaiting | None:
    """Return why items of a batch wait; None if it has ended or closes, or it is not known."""
    if not is_running(source.job):
        return None
    return await views.estimates.item_waiting(source.job)


async def _page(
    views: ViewServices, source: ResultSource, *, first: int, limit: int, status: ItemStatus | None
) -> tuple[list[ItemView], int]:
    """Return items, and the index after the last one that was read."""
    total = source.total_count
    if first >= total or _is_empty(source, status):
        return [], total
    dispatched = {} if source.is_terminal else await views.dispatched_items(source.job)
    items: list[ItemView] = []
    for _ in range(_WINDOWS_MAX):
        positions = await _positions(views, source, first)
        query = ItemQuery(
            source.job_id,
            source.day,
            total,
            first,
            limit - len(items),
            status,
            has_copies=source.job.deduplicate,
            positions=positions,
        )
        page = await views.services.database.run_for_tenant(
            source.tenant_id, read_items, query, dispatched
        )
        items += page.items
        first = page.next_index
        if len(items) == limit or not page.has_more:
            break
    return items, first


async def _positions(views: ViewServices, source: ResultSource, first: int) -> list[int] | None:
    """Return the positions of the next window of items in the order of their emission.

    None if they are the indexes. So they count, too, when an order cannot be read: that of a job
    that has just ended is deleted, and statuses are worth more than an error.
    """
    if source.is_terminal or not any(file.order_key for file in source.inputs):
        return None
    window = range(first, min(first + WINDOW_ITEMS, source.total_count))
    try:
        return await asyncio.to_thread(job_positions, views.services.objects, source.inputs, window)
    except MillraceError:
        return None


def _is_empty(source: ResultSource, status: ItemStatus | None) -> bool:
    """Whether the counters show that no item has the status."""
    if status is None:
        return False
    if status.outcome is None:
        return source.ended_count == source.total_count
    return not getattr(source.job, status.value)


async def _search(views: ViewServices, source: ResultSource, custom_id: str) -> int:
    """Return the index of the item. Raises ApiError (404, 503)."""
    index: int | None = None
    if 0 < len(custom_id) <= CUSTOM_ID_CHARS_MAX and source.total_count:
        views.services.object_threads.require_capacity()
        with views.searches.acquire(source.tenant_id):
            try:
                index = await asyncio.to_thread(find_index, _timed_reads(views), source, custom_id)
            except SearchOverdueError:
                raise _search_timeout() from None
    if index is None or index >= source.total_count:
        raise ApiError(404, "The item does not exist.", code="item_not_found")
    return index


def _search_timeout() -> ApiError:
    """Return the refusal of a search. Without the header, official clients would retry it."""
    return ApiError(
        503,
        "The search took too long. Use the item's id, which needs no search.",
        kind="service_unavailable_error",
        code=SearchOverdueError.code,
        headers={"retry-after": "30", "x-should-retry": "false"},
    )


async def _read_custom_id(views: ViewServices, source: ResultSource, index: int) -> str | None:
    """Return the `custom_id` of an item without a row.

    None also when that takes too long, or the object store is not available.
    """

    def read() -> str | None:
        names = ItemCustomIds(_timed_reads(views), source)
        try:
            return names.at(index)
        except (SearchOverdueError, ObjectStoreUnavailableError):
            return None
        finally:
            names.close()

    with views.searches.acquire(source.tenant_id):
        return await asyncio.to_thread(read)


def _timed_reads(views: ViewServices) -> TimedReads:
    return TimedReads(views.services.objects, SystemClock(), time_s_max=_SEARCH_S_MAX)


def _index(source: ResultSource, text: str) -> int | None:
    """Return the index in an item's id; None when it is not an id of an item of this job."""
    match = _ID.fullmatch(text)
    if match is None or UUID(hex=match[1]) != source.job_id:
        return None
    index = int(match[2], 16)
    return index if index < source.total_count else None


_NOT_TERMINAL: Final = frozenset(
    {ItemStatus.PENDING, ItemStatus.QUEUED, ItemStatus.DISPATCHED, ItemStatus.RETRYING}
)


def item_id(job_id: UUID, index: int) -> str:
    """Return the id of an item."""
    return f"{ITEM}_{job_id.hex}{index:08x}"


def item_object(
    source: ResultSource, item: ItemView, waiting: ItemWaiting | None
) -> dict[str, Any]:
    """Return an item with every key, null if unknown."""
    reason = waiting and waiting_reason(item, waiting.block, waiting.pool)
    row = item.row
    has_ended = item.status not in _NOT_TERMINAL
    return {
        "id": item_id(source.job_id, item.index),
        "object": "batch.item",
        "batch_id": public_id(JOB, source.job_id),
        "index": item.index,
        "custom_id": row.custom_id,
        "status": item.status.value,
        "status_is_derived": not has_ended,
        "attempts": row.attempt if has_ended else _attempts(item),
        "waiting_reason": reason and reason.value,
        "retry_at": seconds(row.due_at) if item.status is ItemStatus.RETRYING else None,
        "worker": item.replica_id if item.status is ItemStatus.DISPATCHED else None,
        "model_version": row.ran_version or _pinned_version(source.job),
        "status_code": row.status_code or None,
        "error": _error(item) if has_ended else None,
        "usage": usage_object(row) if has_ended else None,
        "finished_at": seconds(row.finished_at),
        "copied_from": (
            None if row.copied_from is None else item_id(source.job_id, row.copied_from)
        ),
        "stages": stages_object(source.job, row),
        "failures": [failure_object(failure) for failure in item.failures],
        "millrace": row.ran_version and shown_provenance(row.ran_version, row.ran_engine),
    }


def _pinned_version(job: Any) -> str | None:
    """Return the version that runs the items of a job; None if they have several."""
    version: str = job.model_version
    return None if len(job.models or ()) > 1 else version


def stages_object(job: Any, row: Any) -> dict[str, float] | None:
    """Return the seconds that an item spent in each stage; None if unknown. See `core.stages`.

    Gateway is that of its job; intake is what no other stage accounts for, attempts before the last
    one included.
    """
    if row.queue_ms is None or job.in_progress_at is None:
        return None
    accepted_s, ready_s = job.created_at.timestamp(), job.in_progress_at.timestamp()
    known = {
        Stage.QUEUE: row.queue_ms / 1000,
        Stage.BATCH_WAIT: row.batch_wait_ms / 1000,
        Stage.EXECUTION: row.execution_ms / 1000,
        Stage.RESULT: row.result_ms / 1000,
    }
    intake_s = row.finished_at.timestamp() - ready_s - sum(known.values())
    stages = {
        Stage.GATEWAY: max(0.0, ready_s - accepted_s),
        Stage.INTAKE: max(0.0, intake_s),
        **known,
    }
    return {f"{stage.value}_s": round(seconds_, 3) for stage, seconds_ in stages.items()}


def _attempts(item: ItemView) -> int:
    """Return the known executions: those that failed, and one that may be running."""
    failed = max((failure.attempt for failure in item.failures), default=0)
    return failed + (item.status is ItemStatus.DISPATCHED)


def _error(item: ItemView) -> dict[str, str | None] | None:
    row = item.row
    if item.status is ItemStatus.SUCCEEDED or (row.error_code is None and row.status_code):
        return None
    code = row.error_code or "request_failed"
    return {"code": code, "message": row.error_message or ERROR_MESSAGES.get(code)}
