"""Routes of files."""

import asyncio
import hashlib
from contextlib import suppress
from typing import Annotated, Literal
from uuid import UUID

import msgspec
import sqlalchemy as sa
from fastapi import APIRouter, Depends, Query, Request, Response

from api.auth.audit_entries import record_audit_entry
from api.auth.authentication import KeyRevalidator, PrincipalDep, ServicesDep
from api.files.file_downloads import file_content
from api.files.uploads import receive_upload, storage_quota
from api.http.errors import ApiError
from api.http.paging import parse_after
from api.http.responses import json_response, memory_limited_response
from api.idempotency.idempotent_requests import (
    execute_once,
    idempotency_of_request,
    may_have_saved_answer,
    saved_response,
)
from api.resources import file_object, page_object
from api.runtime.api_services import Services
from api.runtime.database import DatabaseUnavailableError
from core.ids import FILE, parse_public_id, public_id
from jobs.errors import InvalidRequestError, UploadedFileNotFoundError
from jobs.store.file_removal import find_removable_file, mark_removed
from jobs.store.files import NewFile, add_upload, delete_file, find_file, list_files
from jobs.store.idempotency import StoredAnswer
from jobs.store.keyset_pages import PageCursor
from storage.objects.errors import ObjectStoreUnavailableError
from tenancy.audit_log import Action

router = APIRouter()

Purpose = Annotated[str | None, Query(pattern=r"^[a-z_-]{1,64}$")]


@router.post("/v1/files")
async def upload(request: Request, principal: PrincipalDep, services: ServicesDep) -> Response:
    """Store a file, then add its row."""
    context = idempotency_of_request(request, principal, services)
    may_be_replay = await may_have_saved_answer(context, services)
    file = await receive_upload(request, principal.tenant_id, services, skips_quota=may_be_replay)
    try:
        await KeyRevalidator(request, services).check_now()  # the upload may have taken hours
    except (ApiError, DatabaseUnavailableError):
        await asyncio.to_thread(services.objects.delete, file.object_key)
        raise
    quota = storage_quota(services.settings)

    def work(connection: sa.Connection) -> StoredAnswer:
        row = add_upload(connection, file, quota)
        return StoredAnswer(200, msgspec.json.encode(file_object(row)))

    try:
        answer, is_replay = await execute_once(context, services, _form_sha256(file), work)
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
    request: Request,
    principal: PrincipalDep,
    services: ServicesDep,
    cursor: Annotated[PageCursor, Depends(_cursor)],
    purpose: Purpose = None,
) -> Response:
    """List files, newest first by default."""
    page = await services.database.run_for_tenant(
        principal.tenant_id, list_files, principal.tenant_id, cursor, purpose=purpose
    )
    return memory_limited_response(request, principal, services, page_object(page, file_object))


@router.get("/v1/files/{file_id}")
async def show(file_id: str, principal: PrincipalDep, services: ServicesDep) -> Response:
    """Show one file."""
    parsed_id = parse_public_id(FILE, file_id)
    row = await services.database.run_for_tenant(
        principal.tenant_id, find_file, principal.tenant_id, parsed_id
    )
    return json_response(file_object(row))


@router.get("/v1/files/{file_id}/content")
async def content(
    request: Request, file_id: str, principal: PrincipalDep, services: ServicesDep
) -> Response:
    """Return the content of a file."""
    parsed_id = parse_public_id(FILE, file_id)
    row = await services.database.run_for_tenant(
        principal.tenant_id, find_file, principal.tenant_id, parsed_id
    )
    return await file_content(request, row, services)


@router.delete("/v1/files/{file_id}")
async def delete(file_id: str, principal: PrincipalDep, services: ServicesDep) -> Response:
    """Delete a file."""
    parsed_id = parse_public_id(FILE, file_id)
    if parsed_id is None:
        raise UploadedFileNotFoundError
    shown_id = public_id(FILE, parsed_id)

    def work(connection: sa.Connection) -> None:
        delete_file(connection, principal.tenant_id, parsed_id, key_id=principal.key_id)
        record_audit_entry(connection, principal, Action.FILE_DELETED, shown_id, {"files": 1})

    await services.database.run_for_tenant(principal.tenant_id, work)
    await _remove_object(principal.tenant_id, parsed_id, services)
    return json_response({"id": shown_id, "object": "file", "deleted": True})


def _form_sha256(file: NewFile) -> bytes:
    """Hash the content of a form; its boundary and the order of its parts do not matter."""
    parts = (file.purpose, file.filename, file.expires_after_s, file.sha256)
    return hashlib.sha256(msgspec.json.encode(parts)).digest()


async def _remove_object(tenant_id: UUID, file_id: UUID, services: Services) -> None:
    """Delete the object now if no job reads the file; otherwise the garbage collection deletes it.

    The file no longer exists for its owner, so a failure here does not fail the request.
    """
    with suppress(DatabaseUnavailableError, ObjectStoreUnavailableError):
        for removal in await services.database.run_for_tenant(
            tenant_id, find_removable_file, file_id
        ):
            await asyncio.to_thread(services.objects.delete, removal.object_key)
            await services.database.run_for_tenant(tenant_id, mark_removed, [removal.file_id])
