"""Routes of files."""

import asyncio
import hashlib
from contextlib import suppress
from typing import Annotated, Literal
from uuid import UUID

import msgspec
import sqlalchemy as sa
from fastapi import APIRouter, Depends, Query, Response

from api.auth.authentication import KeyRevalidator
from api.auth.tenant_requests import TenantRequest, TenantRequestDep
from api.files.file_downloads import file_content
from api.files.uploads import receive_upload, storage_quota
from api.http.errors import ApiError
from api.http.paging import parse_after
from api.http.responses import json_response, memory_limited_response
from api.idempotency.idempotent_requests import IdempotentRequestDep, saved_response
from api.resources import file_object, page_object
from api.runtime.database import DatabaseUnavailableError
from core.ids import FILE, parse_public_id, public_id
from jobs.errors import InvalidRequestError, UploadedFileNotFoundError
from jobs.store.file_removal import find_removable_file, mark_removed
from jobs.store.files import NewFile, add_upload, delete_file, find_file, list_files
from jobs.store.keyset_pages import PageCursor
from storage.objects.errors import ObjectStoreUnavailableError
from tenancy.audit_log import Action

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
        await asyncio.to_thread(services.objects.delete, file.object_key)
        raise
    quota = storage_quota(services.settings)

    def work(connection: sa.Connection) -> object:
        return file_object(add_upload(connection, file, quota))

    try:
        answer, is_replay = await request.execute_once(work, sha256=_form_sha256(file))
    except InvalidRequestError:
        # After any other error the row may be committed, and must not refer to a deleted object.
        await asyncio.to_thread(services.objects.delete, file.object_key)
        raise
    if is_replay:
        await asyncio.to_thread(services.objects.delete, file.object_key)
    return saved_response(answer, is_replay=is_replay)


def _cursor(
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
    return memory_limited_response(request, page_object(page, file_object))


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
    with suppress(DatabaseUnavailableError, ObjectStoreUnavailableError):
        for removal in await services.database.run_for_tenant(
            tenant_id, find_removable_file, file_id
        ):
            await asyncio.to_thread(services.objects.delete, removal.object_key)
            await services.database.run_for_tenant(tenant_id, mark_removed, [removal.file_id])
