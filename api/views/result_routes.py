"""The route of results: as JSON Lines up to now, or as server-sent events until the batch ends."""

import re
from collections.abc import AsyncGenerator
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response

from api.auth.authentication import KeyRevalidator
from api.auth.tenant_requests import TenantRequest, TenantRequestDep
from api.http.bounded_streams import BoundedStream
from api.http.errors import ApiError
from api.http.middleware import request_exit_stack
from api.views.result_streaming import LIMIT_MAX, ResultStream
from api.views.view_services import ViewServicesDep
from core.ids import JOB, parse_public_id
from results.views.result_sources import result_source
from results.views.sequenced_lines import jsonl, server_sent

router = APIRouter()

SEQUENCE_MAX: Final = 2**31 - 1
# Python refuses to parse numbers of thousands of digits
_SEQUENCE: Final = re.compile(r"[0-9]{1,10}")


@router.get("/v1/batches/{batch_id}/results")
async def show(
    batch_id: str,
    request: TenantRequestDep,
    views: ViewServicesDep,
    after: Annotated[int, Query(ge=0, le=SEQUENCE_MAX)] = 0,
    limit: Annotated[int | None, Query(ge=1, le=LIMIT_MAX)] = None,
) -> Response:
    """Return the results after `after` in the order of their arrival."""
    source = await request.run(result_source, parse_public_id(JOB, batch_id))
    revalidator = KeyRevalidator(request.http, request.services)
    if "text/event-stream" not in request.http.headers.get("accept", ""):
        stream = ResultStream(views, source, jsonl)
        content = stream.available_lines(after, limit)
        return _response(stream, content, revalidator, request, "application/x-ndjson")
    if limit is not None:
        raise ApiError(
            400,
            "A stream has no limit: it continues to the end of the batch.",
            code="invalid_value",
            param="limit",
        )
    after = _last_event_id(request.http, after)
    if source.is_terminal and after > source.ended_count:
        return Response(status_code=204)  # clients that reconnect by themselves stop now
    slot = views.stream_slots.acquire(request.tenant_id)
    request_exit_stack(request.http.scope).enter_context(slot)
    stream = ResultStream(views, source, server_sent)
    content = stream.live_events(after, lambda: _is_key_valid(revalidator))
    return _response(stream, content, revalidator, request, "text/event-stream; charset=utf-8")


async def _is_key_valid(revalidator: KeyRevalidator) -> bool:
    """Whether the API key still works. Raises DatabaseUnavailableError."""
    try:
        await revalidator.check_now()
    except ApiError:
        return False
    return True


def _response(
    stream: ResultStream,
    content: AsyncGenerator[bytes, None],
    revalidator: KeyRevalidator,
    request: TenantRequest,
    content_type: str,
) -> Response:
    async def close() -> None:
        await content.aclose()
        await stream.close()

    return BoundedStream(
        content,
        close,
        200,
        {"content-type": content_type, "cache-control": "no-cache", "x-accel-buffering": "no"},
        idle_timeout_s=request.services.settings.download_idle_timeout_s,
        key_revalidator=revalidator,
    )


def _last_event_id(request: Request, after: int) -> int:
    """Return where a stream continues: a client that reconnects sends it in a header."""
    text = request.headers.get("last-event-id", "").strip()
    if not text:
        return after
    if not (_SEQUENCE.fullmatch(text) and int(text) <= SEQUENCE_MAX):
        raise ApiError(
            400,
            "The value is not an event id of this stream.",
            code="invalid_value",
            param="Last-Event-ID",
        )
    return int(text)
