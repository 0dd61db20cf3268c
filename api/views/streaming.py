"""An answer that is written as it is made, and given up when its client stops reading."""

import asyncio
from collections.abc import AsyncGenerator

from starlette.responses import StreamingResponse
from starlette.types import Message, Send


class StreamedAnswer(StreamingResponse):
    """Writes what a generator yields; it is closed whatever happens, so that it frees all."""

    def __init__(
        self,
        content: AsyncGenerator[bytes, None],
        *,
        media_type: str,
        headers: dict[str, str],
        idle_timeout_s: float,
    ) -> None:
        """A client that takes nothing for `idle_timeout_s` is cut."""
        super().__init__(content, 200, headers, media_type=media_type)
        self._content = content
        self._idle_timeout_s = idle_timeout_s

    async def stream_response(self, send: Send) -> None:
        """See `StreamingResponse`."""

        async def bounded_send(message: Message) -> None:
            async with asyncio.timeout(self._idle_timeout_s):
                await send(message)

        try:
            await super().stream_response(bounded_send)
        finally:
            await self._content.aclose()
