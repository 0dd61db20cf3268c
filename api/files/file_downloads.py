"""Downloads: a whole file or one range, sent in blocks of 1 MiB."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import sqlalchemy as sa
from fastapi import Request, Response

from api import metrics
from api.auth.key_revalidation import KeyRevalidator
from api.files.byte_ranges import ByteRange, RangeUnsatisfiableError, parse_range
from api.files.filenames import content_disposition
from api.http.bounded_streams import BoundedStream
from api.http.responses import ApiError
from api.runtime.api_services import Services
from api.runtime.blocking_calls import BlockingCalls
from storage.objects.object_store import ObjectBlocks


async def file_content(request: Request, row: sa.Row[Any], services: Services) -> Response:
    """Return the content of the file `row`, or the range that `request` asks for.

    Raises ApiError (416), and the errors of the object store.
    """
    byte_range = _requested_range(request, row)
    blocks = await asyncio.to_thread(
        services.objects.read,
        row.object_key,
        offset=byte_range.offset if byte_range else 0,
        length=byte_range.length if byte_range else row.size_bytes,
    )
    headers = {
        "accept-ranges": "bytes",
        "content-disposition": content_disposition(row.filename),
        "content-length": str(byte_range.length if byte_range else row.size_bytes),
        "etag": _etag(row),
        "x-content-type-options": "nosniff",  # a browser must not interpret uploaded content
    }
    if byte_range:
        last = byte_range.offset + byte_range.length - 1
        headers["content-range"] = f"bytes {byte_range.offset}-{last}/{row.size_bytes}"
    return ObjectResponse(
        blocks,
        206 if byte_range else 200,
        headers,
        idle_timeout_s=services.settings.download_idle_timeout_s,
        key_revalidator=KeyRevalidator(request, services),
    )


def _requested_range(request: Request, row: sa.Row[Any]) -> ByteRange | None:
    condition = request.headers.get("if-range")
    if condition is not None and condition != _etag(row):
        return None
    try:
        return parse_range(request.headers.get("range"), row.size_bytes)
    except RangeUnsatisfiableError:
        raise ApiError(
            416,
            "The range starts after the end of the file.",
            code="range_not_satisfiable",
            headers={"content-range": f"bytes */{row.size_bytes}"},
        ) from None


def _etag(row: sa.Row[Any]) -> str:
    """Return a strong tag: the content of a file never changes."""
    return f'"{row.id.hex}"'


class ObjectResponse(BoundedStream):
    """Sends blocks that threads read."""

    def __init__(
        self,
        blocks: ObjectBlocks,
        status: int,
        headers: dict[str, str],
        *,
        idle_timeout_s: float,
        key_revalidator: KeyRevalidator,
    ) -> None:
        """See `BoundedStream`."""
        self._blocks, self._calls = blocks, BlockingCalls()
        super().__init__(
            self._read(),
            status,
            headers,
            media_type="application/octet-stream",
            idle_timeout_s=idle_timeout_s,
            key_revalidator=key_revalidator,
        )

    async def close(self) -> None:
        """See `BoundedStream`. Waits for a read that the object store stalls."""
        await self._calls.run_last(self._blocks.close)

    async def _read(self) -> AsyncIterator[bytes]:
        while block := await self._calls.run(next, self._blocks, b""):
            metrics.DOWNLOADED_BYTES.inc(len(block))
            yield block
