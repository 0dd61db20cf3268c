"""Large answers in JSON: they take room until their readers have them."""

from fastapi import Request, Response

from api.http.middleware import until_answered
from api.http.responses import json_answer
from api.online.admit.readers import LARGE_BYTES
from api.runtime.services import Services
from tenancy.api_keys import Principal


def held_answer(
    request: Request, principal: Principal, services: Services, content: object
) -> Response:
    """Return `content` as JSON. Raises ApiError, 503 or 429, when a large one has no room."""
    answer = json_answer(content)
    byte_count = len(answer.body)
    if byte_count > LARGE_BYTES:
        room = services.readers.hold(principal.tenant_id, byte_count)
        until_answered(request.scope).enter_context(room)
    return answer
