"""The response with the results of a batch."""

from collections.abc import AsyncGenerator
from typing import Final

from api.auth.authentication import KeyRevalidator
from api.http.bounded_streams import BoundedStream
from api.views.result_streaming import ResultStream

_HEADERS: Final = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class ResultResponse(BoundedStream):
    """Sends what a stream of results yields."""

    def __init__(
        self,
        stream: ResultStream,
        content: AsyncGenerator[bytes, None],
        *,
        media_type: str,
        idle_timeout_s: float,
        key_revalidator: KeyRevalidator,
    ) -> None:
        """`content` reads from `stream`; both are closed at the end. See `BoundedStream`."""
        super().__init__(
            content,
            200,
            _HEADERS,
            media_type=media_type,
            idle_timeout_s=idle_timeout_s,
            key_revalidator=key_revalidator,
        )
        self._stream, self._content = stream, content

    async def close(self) -> None:
        """See `BoundedStream`."""
        await self._content.aclose()
        await self._stream.close()
