"""JSON responses, and the error envelope."""

from collections.abc import Mapping

import msgspec
from fastapi import Response


def json_response(
    content: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return `content` as JSON."""
    return Response(
        msgspec.json.encode(content), status, dict(headers or {}), media_type="application/json"
    )


class ApiError(Exception):
    """An error response. Its message is for the client."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`kind` is the `type` on the wire, `param` the invalid field."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.code = code
        self.param = param
        self.headers = headers


def error_response(error: ApiError) -> Response:
    """Return the error envelope; clients rely on the presence of `param` and `code`."""
    return Response(
        error_body(error), error.status, dict(error.headers or {}), media_type="application/json"
    )


def error_body(error: ApiError) -> bytes:
    """Return the bytes of the error envelope."""
    fields = {
        "message": error.message,
        "type": error.kind,
        "param": error.param,
        "code": error.code,
    }
    return msgspec.json.encode({"error": fields})


def internal_error_response() -> Response:
    """Return the response to a request that crashed, without details."""
    return error_response(
        ApiError(500, "The server had an error.", kind="server_error", code="internal")
    )


def unavailable(message: str, *, retry_after_s: int, code: str) -> ApiError:
    """Return a 503. `retry_after_s` is 1 to 60: some clients ignore or mishandle longer ones."""
    assert 1 <= retry_after_s <= 60
    return ApiError(
        503,
        message,
        kind="service_unavailable_error",
        code=code,
        headers={"retry-after": str(retry_after_s)},
    )
