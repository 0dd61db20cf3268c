"""An answer that is written as it is made, and given up when nobody may or will read on."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from api.auth.key_revalidation import KeyRevalidator
from api.http.client_connection import client_connection
from api.http.errors import as_api_error
from api.http.middleware import request_id_of
from api.http.responses import ApiError
from core.errors import MillraceError
from core.ids import REQUEST, public_id

log = logging.getLogger(__name__)


class _CutError(Exception):
    """The client took nothing for too long, or its key works no longer."""


class BoundedStream(StreamingResponse, ABC):
    """Writes blocks; closes what they come from, whatever happens.

    Once the head is out no error can be told: the connection is dropped, so that nobody takes what
    was sent for the whole.
    """

    def __init__(
        self,
        content: AsyncIterable[bytes],
        status: int,
        headers: dict[str, str],
        *,
        media_type: str,
        idle_timeout_s: float,
        key_watch: KeyRevalidator,
    ) -> None:
        """A client that takes nothing for `idle_timeout_s` is cut off: it gets no end."""
        super().__init__(content, status, headers, media_type=media_type)
        self._idle_timeout_s = idle_timeout_s
        self._key_watch = key_watch
        self._is_begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See `StreamingResponse`."""
        try:
            await super().__call__(scope, receive, send)
        except _CutError:
            client_connection(scope).drop()
        except MillraceError as error:
            if not self._is_begun or as_api_error(error) is None:
                raise
            request_id = public_id(REQUEST, request_id_of(scope))
            log.warning("answer cut", extra={"request_id": request_id, "error": error.code})
            client_connection(scope).drop()
        finally:
            await self.close()  # not in the group that was cancelled: there no wait would last

    async def stream_response(self, send: Send) -> None:
        """See `StreamingResponse`."""

        async def bounded_send(message: Message) -> None:
            try:
                if message.get("body"):
                    await self._key_watch.check()
                self._is_begun = True
                async with asyncio.timeout(self._idle_timeout_s):
                    await send(message)
            except (ApiError, TimeoutError):
                raise _CutError from None

        await super().stream_response(bounded_send)

    @abstractmethod
    async def close(self) -> None:
        """Give back what the blocks come from; nothing reads them any more but a thread."""
