"""From the object store to the socket: whole files or one range, in blocks of 1 MiB."""

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
from api.runtime.blocking_calls import BlockingCalls
from api.runtime.services import Services
from storage.objects.object_store import Blocks


async def file_content(request: Request, row: sa.Row[Any], services: Services) -> Response:
    """Return the content of the file `row`, or the range that `request` asks for.

    Raises ApiError (416), ObjectMissingError, ObjectStoreAwayError.
    """
    part = _wanted(request, row)
    blocks = await asyncio.to_thread(
        services.objects.read,
        row.object_key,
        offset=part.offset if part else 0,
        length=part.length if part else row.size_bytes,
    )
    headers = {
        "accept-ranges": "bytes",
        "content-disposition": content_disposition(row.filename),
        "content-length": str(part.length if part else row.size_bytes),
        "etag": _etag(row),
        "x-content-type-options": "nosniff",  # what a client stored is never a page of ours
    }
    if part:
        last = part.offset + part.length - 1
        headers["content-range"] = f"bytes {part.offset}-{last}/{row.size_bytes}"
    return ObjectResponse(
        blocks,
        206 if part else 200,
        headers,
        idle_timeout_s=services.settings.download_idle_timeout_s,
        key_watch=KeyRevalidator(request, services),
    )


def _wanted(request: Request, row: sa.Row[Any]) -> ByteRange | None:
    condition = request.headers.get("if-range")
    if condition is not None and condition != _etag(row):
        return None
    try:
        return parse_range(request.headers.get("range"), row.size_bytes)
    except RangeUnsatisfiableError:
        raise ApiError(
            416,
            "The range begins behind the end of the file.",
            code="range_not_satisfiable",
            headers={"content-range": f"bytes */{row.size_bytes}"},
        ) from None


def _etag(row: sa.Row[Any]) -> str:
    """Return a strong tag: content never changes under an id."""
    return f'"{row.id.hex}"'


class ObjectResponse(BoundedStream):
    """Blocks read by threads."""

    def __init__(
        self,
        blocks: Blocks,
        status: int,
        headers: dict[str, str],
        *,
        idle_timeout_s: float,
        key_watch: KeyRevalidator,
    ) -> None:
        """As `BoundedStream`."""
        self._blocks, self._calls = blocks, BlockingCalls()
        super().__init__(
            self._read(),
            status,
            headers,
            media_type="application/octet-stream",
            idle_timeout_s=idle_timeout_s,
            key_watch=key_watch,
        )

    async def close(self) -> None:
        """See `BoundedStream`. A store that stalls a read would make its close wait, too."""
        await self._calls.end(self._blocks.close)

    async def _read(self) -> AsyncIterator[bytes]:
        while block := await self._calls.make(next, self._blocks, b""):
            metrics.DOWNLOADED_BYTES.inc(len(block))
            yield block
