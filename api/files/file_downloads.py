"""Downloads: a whole file or one range, sent in blocks of 1 MiB."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import sqlalchemy as sa
from fastapi import Request, Response

from api import metrics
from api.auth.authentication import KeyRevalidator
from api.http.bounded_streams import BoundedStream
from api.http.errors import ApiError
from api.runtime.api_services import Services
from api.runtime.object_threads import BlockingCalls
from storage.objects.object_store import ObjectBlocks

_ONE_RANGE: Final = re.compile(r"bytes=[ \t]*([0-9]{0,18})-([0-9]{0,18})[ \t]*")


@dataclass(frozen=True, slots=True)
class ByteRange:
    """A range of an object."""

    offset: int
    length: int


class RangeUnsatisfiableError(Exception):
    """The range starts after the end of the object."""


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
        "content-type": "application/octet-stream",
        "content-length": str(byte_range.length if byte_range else row.size_bytes),
        "etag": _etag(row),
        "x-content-type-options": "nosniff",  # a browser must not interpret uploaded content
    }
    if byte_range:
        last = byte_range.offset + byte_range.length - 1
        headers["content-range"] = f"bytes {byte_range.offset}-{last}/{row.size_bytes}"
    return object_response(
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


def parse_range(header: str | None, size_bytes: int) -> ByteRange | None:
    """Return the requested range, or None for the whole object. Raises RangeUnsatisfiableError."""
    parts = _ONE_RANGE.fullmatch(header or "")
    if parts is None or parts[1] == parts[2] == "":
        return None
    if parts[1] == "":
        length = min(int(parts[2]), size_bytes)
        if length == 0:
            raise RangeUnsatisfiableError
        return ByteRange(size_bytes - length, length)
    first = int(parts[1])
    last = int(parts[2]) if parts[2] else size_bytes - 1
    if parts[2] and last < first:
        return None  # not a valid range
    if first >= size_bytes:
        raise RangeUnsatisfiableError
    return ByteRange(first, min(last, size_bytes - 1) - first + 1)


def _etag(row: sa.Row[Any]) -> str:
    """Return a strong tag: the content of a file never changes."""
    return f'"{row.id.hex}"'


def object_response(
    blocks: ObjectBlocks,
    status: int,
    headers: dict[str, str],
    *,
    idle_timeout_s: float,
    key_revalidator: KeyRevalidator,
) -> Response:
    """Return a response that sends blocks, which threads read. See `BoundedStream`."""
    calls = BlockingCalls()

    async def read() -> AsyncIterator[bytes]:
        while block := await calls.run(next, blocks, b""):
            metrics.DOWNLOADED_BYTES.inc(len(block))
            yield block

    return BoundedStream(
        read(),
        lambda: calls.run_last(blocks.close),  # waits for a read that the object store stalls
        status,
        headers,
        idle_timeout_s=idle_timeout_s,
        key_revalidator=key_revalidator,
    )


def content_disposition(name: str) -> str:
    """Return the Content-Disposition of a download (RFC 6266), in ASCII."""
    plain = _PLAIN.sub("_", name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"


_PLAIN: Final = re.compile(r"[^A-Za-z0-9._ -]")
