"""The route of results: as JSON Lines up to now, or as server-sent events until the batch ends."""

import re
from collections.abc import AsyncGenerator
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response

from api.auth.authentication import KeyRevalidator, PrincipalDep
from api.http.errors import ApiError
from api.http.middleware import request_exit_stack
from api.views.result_response import ResultResponse
from api.views.result_streaming import LIMIT_MAX, ResultStream
from api.views.view_services import ViewServices, ViewServicesDep
from core.ids import JOB, parse_public_id
from results.views.result_sources import result_source
from results.views.sequenced_lines import jsonl, server_sent

router = APIRouter()

SEQUENCE_MAX: Final = 2**31 - 1
# Python refuses to parse numbers of thousands of digits
_SEQUENCE: Final = re.compile(r"[0-9]{1,10}")


@router.get("/v1/batches/{batch_id}/results")
async def show(
    request: Request,
    batch_id: str,
    principal: PrincipalDep,
    views: ViewServicesDep,
    after: Annotated[int, Query(ge=0, le=SEQUENCE_MAX)] = 0,
    limit: Annotated[int | None, Query(ge=1, le=LIMIT_MAX)] = None,
) -> Response:
    """Return the results after `after` in the order of their arrival."""
    job_id = parse_public_id(JOB, batch_id)
    database = views.services.database
    source = await database.run_for_tenant(
        principal.tenant_id, result_source, principal.tenant_id, job_id
    )
    revalidator = KeyRevalidator(request, views.services)
    if "text/event-stream" not in request.headers.get("accept", ""):
        stream = ResultStream(views, principal, source, jsonl)
        content = stream.available_lines(after, limit)
        return _response(stream, content, views, revalidator, "application/x-ndjson")
    if limit is not None:
        raise ApiError(
            400,
            "A stream has no limit: it continues to the end of the batch.",
            code="invalid_value",
            param="limit",
        )
    after = _last_event_id(request, after)
    if source.is_terminal and after > source.ended_count:
        return Response(status_code=204)  # clients that reconnect by themselves stop now
    request_exit_stack(request.scope).enter_context(views.stream_slots.acquire(principal.tenant_id))
    stream = ResultStream(views, principal, source, server_sent)
    content = stream.live_events(after, lambda: _is_key_valid(revalidator))
    return _response(stream, content, views, revalidator, "text/event-stream")


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
    views: ViewServices,
    revalidator: KeyRevalidator,
    media_type: str,
) -> Response:
    return ResultResponse(
        stream,
        content,
        media_type=media_type,
        idle_timeout_s=views.services.settings.download_idle_timeout_s,
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
