"""An answer that is written as it is made, and given up when its client stops reading."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from api.client_connection import client_connection


class _StoppedReadingError(Exception):
    """The client took nothing for too long."""


class BoundedStream(StreamingResponse, ABC):
    """Writes blocks; closes what they come from, whatever happens."""

    def __init__(
        self,
        content: AsyncIterable[bytes],
        status: int,
        headers: dict[str, str],
        *,
        media_type: str,
        idle_timeout_s: float,
    ) -> None:
        """A client that takes nothing for `idle_timeout_s` is cut off: it gets no end."""
        super().__init__(content, status, headers, media_type=media_type)
        self._idle_timeout_s = idle_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See `StreamingResponse`."""
        try:
            await super().__call__(scope, receive, send)
        except _StoppedReadingError:
            client_connection(scope).drop()

    async def stream_response(self, send: Send) -> None:
        """See `StreamingResponse`."""

        async def bounded_send(message: Message) -> None:
            try:
                async with asyncio.timeout(self._idle_timeout_s):
                    await send(message)
            except TimeoutError:
                raise _StoppedReadingError from None

        try:
            await super().stream_response(bounded_send)
        finally:
            await self.close()

    @abstractmethod
    async def close(self) -> None:
        """Give back what the blocks come from."""
