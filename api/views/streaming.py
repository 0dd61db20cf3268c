"""An answer that a generator makes."""

from collections.abc import AsyncGenerator

from api.bounded_streams import BoundedStream


class StreamedAnswer(BoundedStream):
    """Writes what a generator yields; it is closed whatever happens, so that it frees all."""

    def __init__(
        self,
        content: AsyncGenerator[bytes, None],
        *,
        media_type: str,
        headers: dict[str, str],
        idle_timeout_s: float,
    ) -> None:
        """As `BoundedStream`."""
        super().__init__(
            content, 200, headers, media_type=media_type, idle_timeout_s=idle_timeout_s
        )
        self._content = content

    async def close(self) -> None:
        """See `BoundedStream`."""
        await self._content.aclose()
