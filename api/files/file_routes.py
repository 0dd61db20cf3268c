"""Routes of files. A download is a whole file or one range, sent in blocks of 1 MiB."""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote
from uuid import UUID

import msgspec
import sqlalchemy as sa
from fastapi import APIRouter, Depends, Query, Request, Response

from api import metrics
from api.auth.authentication import KeyRevalidator, TenantRequest, TenantRequestDep
from api.files.uploads import commit_upload, receive_upload, storage_quota
from api.http.errors import ApiError
from api.http.paging import parse_after
from api.http.responses import BoundedStream, json_response, memory_limited_response
from api.idempotent_requests import IdempotentRequestDep, saved_response
from api.resources import file_object, page_object
from api.runtime.api_services import Services
from api.runtime.database import DatabaseUnavailableError
from api.runtime.object_threads import BlockingCalls, delete_object
from core.ids import FILE, parse_public_id, public_id
from jobs.errors import UploadedFileNotFoundError
from jobs.store.files import NewFile, add_upload, delete_file, find_file, list_files
from jobs.store.keyset_pages import PageCursor
from jobs.store.removable_objects import find_removable_file, mark_removed
from storage.objects.object_store import ObjectBlocks
from tenancy.audit_log import Action

_ONE_RANGE: Final = re.compile(r"bytes=[ \t]*([0-9]{0,18})-([0-9]{0,18})[ \t]*")


class RangeUnsatisfiableError(Exception):
    """The range starts after the end of the object."""


async def file_content(request: Request, row: sa.Row[Any], services: Services) -> Response:
    """Return the content of the file `row`, or the range that `request` asks for.

    Raises ApiError (416), and the errors of the object store; ObjectStoreUnavailableError also
    while many calls wait for it.
    """
    byte_range = _requested_range(request, row)
    services.object_threads.require_capacity()
    blocks = await asyncio.to_thread(
        services.objects.read,
        row.object_key,
        offset=byte_range.start if byte_range else 0,
        length=len(byte_range) if byte_range else row.size_bytes,
    )
    headers = {
        "accept-ranges": "bytes",
        "content-disposition": content_disposition(row.filename),
        "content-type": "application/octet-stream",
        "content-length": str(len(byte_range) if byte_range else row.size_bytes),
        "etag": _etag(row),
        "x-content-type-options": "nosniff",  # a browser must not interpret uploaded content
    }
    if byte_range:
        first, last = byte_range[0], byte_range[-1]
        headers["content-range"] = f"bytes {first}-{last}/{row.size_bytes}"
    return object_response(
        blocks,
        206 if byte_range else 200,
        headers,
        idle_timeout_s=services.settings.download_idle_timeout_s,
        key_revalidator=KeyRevalidator(request, services),
    )


def _requested_range(request: Request, row: sa.Row[Any]) -> range | None:
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


def parse_range(header: str | None, size_bytes: int) -> range | None:
    """Return the requested offsets; None for the whole object. Raises RangeUnsatisfiableError."""
    parts = _ONE_RANGE.fullmatch(header or "")
    if parts is None or parts[1] == parts[2] == "":
        return None
    if parts[1] == "":
        length = min(int(parts[2]), size_bytes)
        if length == 0:
            raise RangeUnsatisfiableError
        return range(size_bytes - length, size_bytes)
    first = int(parts[1])
    last = int(parts[2]) if parts[2] else size_bytes - 1
    if parts[2] and last < first:
        return None  # not a valid range
    if first >= size_bytes:
        raise RangeUnsatisfiableError
    return range(first, min(last, size_bytes - 1) + 1)


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


router = APIRouter()

Purpose = Annotated[str | None, Query(pattern=r"^[a-z_-]{1,64}$")]


@router.post("/v1/files")
async def upload(request: IdempotentRequestDep) -> Response:
    """Store a file, then add its row."""
    services = request.services
    file = await receive_upload(request, skips_quota=await request.may_have_saved_answer())
    try:
        await KeyRevalidator(request.http, services).check_now()  # the upload may have taken hours
    except (ApiError, DatabaseUnavailableError):
        await delete_object(services.objects, file.object_key)
        raise
    quota = storage_quota(services.settings)

    def work(connection: sa.Connection) -> object:
        return file_object(add_upload(connection, file, quota))

    answer, is_replay = await commit_upload(request, file, work, sha256=_form_sha256(file))
    return saved_response(answer, is_replay=is_replay)


async def _cursor(
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
) -> PageCursor:
    return PageCursor(limit=limit, after=parse_after(FILE, after), ascending=order == "asc")


@router.get("/v1/files")
async def show_list(
    request: TenantRequestDep,
    cursor: Annotated[PageCursor, Depends(_cursor)],
    purpose: Purpose = None,
) -> Response:
    """List files, newest first by default."""
    page = await request.run(list_files, cursor, purpose=purpose)
    return memory_limited_response(request, page_object(page.rows, page.has_more, file_object))


@router.get("/v1/files/{file_id}")
async def show(file_id: str, request: TenantRequestDep) -> Response:
    """Show one file."""
    row = await request.run(find_file, parse_public_id(FILE, file_id))
    return json_response(file_object(row))


@router.get("/v1/files/{file_id}/content")
async def content(file_id: str, request: TenantRequestDep) -> Response:
    """Return the content of a file."""
    row = await request.run(find_file, parse_public_id(FILE, file_id))
    return await file_content(request.http, row, request.services)


@router.delete("/v1/files/{file_id}")
async def delete(file_id: str, request: TenantRequestDep) -> Response:
    """Delete a file."""
    parsed_id = parse_public_id(FILE, file_id)
    if parsed_id is None:
        raise UploadedFileNotFoundError
    shown_id = public_id(FILE, parsed_id)

    def work(connection: sa.Connection, tenant_id: UUID) -> None:
        delete_file(connection, tenant_id, parsed_id, key_id=request.principal.key_id)
        request.record_audit_entry(connection, Action.FILE_DELETED, shown_id, {"files": 1})

    await request.run(work)
    await _remove_object(request, parsed_id)
    return json_response({"id": shown_id, "object": "file", "deleted": True})


def _form_sha256(file: NewFile) -> bytes:
    """Hash the content of a form; its boundary and the order of its parts do not matter."""
    parts = (file.purpose, file.filename, file.expires_after_s, file.sha256)
    return hashlib.sha256(msgspec.json.encode(parts)).digest()


async def _remove_object(request: TenantRequest, file_id: UUID) -> None:
    """Delete the object now if no job reads the file; otherwise the garbage collection deletes it.

    The file no longer exists for its owner, so a failure here does not fail the request.
    """
    services, tenant_id = request.services, request.tenant_id
    with suppress(DatabaseUnavailableError):
        for removal in await services.database.run_for_tenant(
            tenant_id, find_removable_file, file_id
        ):
            if await delete_object(services.objects, removal.object_key):
                await services.database.run_for_tenant(tenant_id, mark_removed, [removal.file_id])
