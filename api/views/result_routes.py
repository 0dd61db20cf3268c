"""Results as they come: as JSON Lines up to now, or as server-sent events that go on."""

import re
from collections.abc import AsyncGenerator
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response

from api.auth.key_revalidation import KeyRevalidator
from api.auth.principals import PrincipalDep
from api.http.middleware import request_exit_stack
from api.http.responses import ApiError
from api.views.result_response import ResultResponse
from api.views.result_stream import LIMIT_MAX, ResultStream
from api.views.view_services import ViewServices, ViewServicesDep
from core.ids import JOB, parse_public_id
from results.views.result_sources import result_source
from results.views.sequenced_lines import jsonl, server_sent

router = APIRouter()

SEQUENCE_MAX: Final = 2**31 - 1
_SEQUENCE: Final = re.compile(r"[0-9]{1,10}")  # of thousands of digits Python makes no number


@router.get("/v1/batches/{batch_id}/results")
async def show(
    request: Request,
    batch_id: str,
    principal: PrincipalDep,
    views: ViewServicesDep,
    after: Annotated[int, Query(ge=0, le=SEQUENCE_MAX)] = 0,
    limit: Annotated[int | None, Query(ge=1, le=LIMIT_MAX)] = None,
) -> Response:
    """Give the results behind `after` in the order in which they came."""
    wanted = parse_public_id(JOB, batch_id)
    database = views.services.database
    source = await database.run_for_tenant(
        principal.tenant_id, result_source, principal.tenant_id, wanted
    )
    watch = KeyRevalidator(request, views.services)
    if "text/event-stream" not in request.headers.get("accept", ""):
        stream = ResultStream(views, principal, source, jsonl)
        content = stream.present(after, limit)
        return _answer(stream, content, views, watch, "application/x-ndjson")
    if limit is not None:
        raise ApiError(
            400, "A stream goes on to the end of the batch.", code="invalid_value", param="limit"
        )
    after = _last_event_id(request, after)
    if source.is_terminal and after > source.ended_count:
        return Response(status_code=204)  # clients that come back by themselves stop now
    request_exit_stack(request.scope).enter_context(views.stream_slots.acquire(principal.tenant_id))
    stream = ResultStream(views, principal, source, server_sent)
    content = stream.followed(after, lambda: _may_go_on(watch))
    return _answer(stream, content, views, watch, "text/event-stream")


async def _may_go_on(watch: KeyRevalidator) -> bool:
    """Whether the key still works. Raises DatabaseAwayError."""
    try:
        await watch.check_now()
    except ApiError:
        return False
    return True


def _answer(
    stream: ResultStream,
    content: AsyncGenerator[bytes, None],
    views: ViewServices,
    watch: KeyRevalidator,
    media_type: str,
) -> Response:
    return ResultResponse(
        stream,
        content,
        media_type=media_type,
        idle_timeout_s=views.services.settings.download_idle_timeout_s,
        key_revalidator=watch,
    )


def _last_event_id(request: Request, after: int) -> int:
    """Return where a stream goes on: a client that comes back says it in a header."""
    text = request.headers.get("last-event-id", "").strip()
    if not text:
        return after
    if not (_SEQUENCE.fullmatch(text) and int(text) <= SEQUENCE_MAX):
        raise ApiError(
            400, "This is no id of an event.", code="invalid_value", param="Last-Event-ID"
        )
    return int(text)
