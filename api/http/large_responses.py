"""Large answers in JSON: they take room until their readers have them."""

from fastapi import Request, Response

from api.http.middleware import request_exit_stack
from api.http.responses import json_response
from api.online.admit.readers import LARGE_BYTES
from api.runtime.services import Services
from tenancy.api_keys import Principal


def memory_limited_response(
    request: Request, principal: Principal, services: Services, content: object
) -> Response:
    """Return `content` as JSON. Raises ApiError, 503 or 429, when a large one has no room."""
    answer = json_response(content)
    byte_count = len(answer.body)
    if byte_count > LARGE_BYTES:
        room = services.readers.hold(principal.tenant_id, byte_count)
        request_exit_stack(request.scope).enter_context(room)
    return answer
