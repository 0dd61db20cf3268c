"""JSON responses, which reserve memory while they are large, and streams limited in time."""

import asyncio
import logging
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping

import msgspec
from fastapi import Response
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from api.auth.authentication import KeyRevalidator, TenantRequest
from api.http.client_connection import client_connection
from api.http.errors import ApiError, as_api_error
from api.http.middleware import request_exit_stack, request_id_of
from api.online.memory_limits import LARGE_BYTES
from core.errors import MillraceError
from core.ids import REQUEST, public_id


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


log = logging.getLogger(__name__)


class _AbortError(Exception):
    """The client read nothing for too long, or its key is revoked."""


class BoundedStream(StreamingResponse):
    """Writes blocks, and always closes their source.

    After the head no error can be sent. The connection is dropped then, so that the client does not
    take a partial response for a complete one.
    """

    def __init__(
        self,
        content: AsyncIterable[bytes],
        close: Callable[[], Awaitable[None]],
        status: int,
        headers: dict[str, str],
        *,
        idle_timeout_s: float,
        key_revalidator: KeyRevalidator,
    ) -> None:
        """`close` closes the source of `content`, from which only a thread may still be reading.

        The connection is dropped when the client reads nothing for `idle_timeout_s`.
        """
        super().__init__(content, status, headers)
        self._close, self._idle_timeout_s = close, idle_timeout_s
        self._key_revalidator = key_revalidator
        self._has_started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See `StreamingResponse`."""
        try:
            await super().__call__(scope, receive, send)
        except _AbortError:
            client_connection(scope).abort()
        except MillraceError as error:
            if not self._has_started or as_api_error(error) is None:
                raise
            request_id = public_id(REQUEST, request_id_of(scope))
            log.warning("answer cut", extra={"request_id": request_id, "error": error.code})
            client_connection(scope).abort()
        finally:
            # outside the cancelled task group, where every await would be cancelled
            await self._close()

    async def stream_response(self, send: Send) -> None:
        """See `StreamingResponse`."""

        async def bounded_send(message: Message) -> None:
            try:
                if message.get("body"):
                    await self._key_revalidator.check_if_due()
                self._has_started = True
                async with asyncio.timeout(self._idle_timeout_s):
                    await send(message)
            except (ApiError, TimeoutError):
                raise _AbortError from None

        await super().stream_response(bounded_send)
