"""JSON responses. Large ones reserve memory until their clients have read them."""

from collections.abc import Mapping

import msgspec
from fastapi import Response

from api.auth.authentication import TenantRequest
from api.http.middleware import request_exit_stack
from api.online.memory_limits import LARGE_BYTES


def json_response(
    content: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return `content` as JSON."""
    return Response(
        msgspec.json.encode(content), status, dict(headers or {}), media_type="application/json"
    )


def memory_limited_response(request: TenantRequest, content: object) -> Response:
    """Return `content` as JSON.

    Raises ApiError, 503 or 429, when a large response exceeds the memory limit.
    """
    response = json_response(content)
    byte_count = len(response.body)
    if byte_count > LARGE_BYTES:
        reservation = request.services.response_limit.reserve(request.tenant_id, byte_count)
        request_exit_stack(request.http.scope).enter_context(reservation)
    return response
