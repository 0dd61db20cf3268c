"""Routes of dead letters: items that failed finally, and redriving them in a new batch."""

import asyncio
import re
from collections.abc import Iterable
from typing import Any, Final
from uuid import UUID

import msgspec
import sqlalchemy as sa
from fastapi import APIRouter, Response

from api import metrics
from api.auth.authentication import TenantRequestDep
from api.files.uploads import UploadLimits, commit_upload, storage_quota, upload_limits
from api.http.paging import PageDep, page_response
from api.http.responses import json_response
from api.idempotent_requests import IdempotentRequest, IdempotentRequestDep, saved_response
from api.resources import batch_object, failure_object, seconds
from core.ids import JOB, new_uuid, parse_public_id, public_id
from core.object_names import FILES
from jobs.errors import DeadLetterNotFoundError, InvalidFieldError, JobNotFoundError
from jobs.store.batches import check_open_batch_limit, checked_window_s, create_job
from jobs.store.files import INPUT_EXPIRES_AFTER_S, INPUT_PURPOSE, NewFile, add_upload
from jobs.store.keyset_pages import unknown_cursor_error
from jobs.store.redrive import (
    REDRIVE_MAX,
    Redrive,
    check_edits,
    mark_redriven,
    new_redrive_job,
    read_edited_lines,
    select_dead_letters,
)
from results.views.dead_letter_queries import (
    DeadLetterPosition,
    DeadLetterView,
    code_of_row,
    find_dead_letter,
    list_dead_letters,
    readable_body,
)
from storage.objects.object_store import ObjectStore, StoredObject
from tenancy.audit_log import Action, Details

router = APIRouter()


class RedriveBody(msgspec.Struct):
    """The items to redrive: `ids` of one batch, or all of `batch` that are not redriven yet."""

    batch: str | None = None
    ids: list[str] | None = None
    edits: dict[str, Any] = {}  # a JSON merge patch (RFC 7396) for the body of every line
    completion_window: str | None = None  # as the old batch had
    metadata: dict[str, str] | None = None  # default: as in the old batch, with `redrive_of`


@router.get("/v1/dead_letters")
async def show_list(request: TenantRequestDep, page: PageDep, batch: str | None = None) -> Response:
    """List dead letters: of a batch in the order of its lines, otherwise newest first."""
    item = None if page.after is None else parse_dead_letter_id(page.after)
    if page.after is not None and item is None:
        raise unknown_cursor_error()
    job_id = None if batch is None else _job_id(batch)
    found = await request.run(list_dead_letters, job_id=job_id, after=item, limit=page.limit)
    return page_response((found.rows, found.has_more), dead_letter_object)


@router.get("/v1/dead_letters/{letter_id}")
async def show(letter_id: str, request: TenantRequestDep) -> Response:
    """Show a dead letter with all attempts and its last response."""
    view = await request.run(find_dead_letter, parse_dead_letter_id(letter_id))
    body = view.row.body
    if view.row.zero_retention:
        request.services.object_threads.require_capacity()
        body = await asyncio.to_thread(readable_body, request.services.objects, view.row)
    return json_response(dead_letter_detail_object(view, body))


@router.post("/v1/dead_letters/redrive")
async def redrive(request: IdempotentRequestDep) -> Response:
    """Create a batch from dead letters, and show it."""
    body = await request.json_body(RedriveBody)
    # Items that this request has redriven before are no longer selected.
    saved = await request.find_saved_answer()
    if saved is not None:
        return saved_response(saved, is_replay=True)
    check_edits(body.edits)
    selection = _selected(body)
    with request.services.redrives.acquire(request.tenant_id):
        chosen = await request.run(select_dead_letters, *selection)
        return await _create_redrive(request, body, chosen)


async def _create_redrive(
    request: IdempotentRequest, body: RedriveBody, chosen: Redrive
) -> Response:
    """Store the input file and create the job.

    Checks that need no file come before it is written.
    """
    request.services.object_threads.require_capacity()
    objects, settings = request.services.objects, request.services.settings
    tenant_id, file_id = request.tenant_id, new_uuid()
    new = new_redrive_job(
        chosen, file_id, completion_window=body.completion_window, metadata=body.metadata
    )
    checked_window_s(new)
    open_max = settings.open_batches_max
    await request.run(check_open_batch_limit, open_max=open_max)
    limits = await upload_limits(request)
    lines = read_edited_lines(objects, chosen, body.edits)
    stored = await asyncio.to_thread(_store, objects, file_id, lines, limits)
    file = NewFile(
        file_id=file_id,
        tenant_id=tenant_id,
        purpose=INPUT_PURPOSE,
        filename=f"redrive_of_{public_id(JOB, chosen.job.id)}.jsonl",
        object_key=stored.key,
        size_bytes=stored.size_bytes,
        sha256=stored.sha256_hex,
        expires_after_s=INPUT_EXPIRES_AFTER_S,
    )

    def work(connection: sa.Connection) -> object:
        add_upload(connection, file, storage_quota(settings))
        row = create_job(connection, tenant_id, new, open_max=open_max)
        mark_redriven(connection, chosen, row.id)
        details: Details = {"batch": public_id(JOB, chosen.job.id), "is_edited": bool(body.edits)}
        request.record_audit_entry(
            connection, Action.ITEMS_REDRIVEN, public_id(JOB, row.id), details
        )
        return batch_object(row)

    answer, is_replay = await commit_upload(request, file, work)
    if not is_replay:
        metrics.JOBS_CREATED.labels(new.endpoint).inc()
    return saved_response(answer, is_replay=is_replay)


def _selected(body: RedriveBody) -> tuple[UUID, list[int] | None]:
    """Return the job and its items; None for all. Raises InvalidFieldError and not-found errors."""
    if (body.ids is None) == (body.batch is None):
        raise InvalidFieldError("Give either 'ids' or 'batch'.", param="ids")
    if body.ids is None:
        return _job_id(body.batch or ""), None
    if not 0 < len(body.ids) <= REDRIVE_MAX:
        raise InvalidFieldError(f"Give 1 to {REDRIVE_MAX} ids.", param="ids")
    items = [item for item in map(parse_dead_letter_id, body.ids) if item is not None]
    if len(items) < len(body.ids):
        raise DeadLetterNotFoundError
    if len({item.job_id for item in items}) > 1:
        raise InvalidFieldError("All ids must be of one batch.", param="ids")
    return items[0].job_id, [item.item_index for item in items]


def _store(
    objects: ObjectStore, file_id: UUID, lines: Iterable[bytes], limits: UploadLimits
) -> StoredObject:
    """Store the input file, no larger than an upload: edits are added to every line.

    Raises the errors of `UploadLimits.check`, of the lines and of the object store; then no object
    remains.
    """
    size_bytes = 0
    with objects.begin_upload(f"{FILES}{file_id.hex}") as upload:
        for line in lines:
            size_bytes += len(line) + 1
            limits.check(size_bytes)
            upload.write(line + b"\n")
        return upload.complete(if_absent=True)


def _job_id(text: str) -> UUID:
    job_id = parse_public_id(JOB, text)
    if job_id is None:
        raise JobNotFoundError
    return job_id


_PREFIX: Final = "dead"
_ID: Final = re.compile(r"dead_([0-9a-f]{32})_(0|[1-9][0-9]{0,8})")


def parse_dead_letter_id(text: str) -> DeadLetterPosition | None:
    """Return the item of an id, or None when it is not an id of a dead letter."""
    match = _ID.fullmatch(text)
    return None if match is None else DeadLetterPosition(UUID(hex=match[1]), int(match[2]))


def dead_letter_object(row: sa.Row[Any]) -> dict[str, object]:
    """Return a dead letter as lists show it."""
    redriven_by: UUID | None = row.redriven_job_id
    return {
        "id": f"{_PREFIX}_{row.job_id.hex}_{row.item_index}",
        "object": "dead_letter",
        "batch_id": public_id(JOB, row.job_id),
        "index": row.item_index,
        "custom_id": row.custom_id,
        "code": code_of_row(row),
        "message": row.error_message,
        "status_code": row.status_code or None,
        "attempts": row.attempt,
        "failed_at": seconds(row.failed_at),
        "redriven_by": None if redriven_by is None else public_id(JOB, redriven_by),
    }


def dead_letter_detail_object(view: DeadLetterView, body: bytes | None) -> dict[str, object]:
    """Return a dead letter with all attempts, and its last response if that is known."""
    row = view.row
    return {
        **dead_letter_object(row),
        "endpoint": row.endpoint,
        "history": [failure_object(attempt) for attempt in view.attempts],
        "response": None if body is None else _json_or_text(body),
    }


def _json_or_text(body: bytes) -> object:
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body.decode(errors="replace")
    return msgspec.Raw(body)
