"""Routes of dead letters: items that failed for good, and the way to run them again."""

import asyncio
from collections.abc import Iterable
from typing import Any
from uuid import UUID

import msgspec
import sqlalchemy as sa
from fastapi import APIRouter, Request, Response

from api import metrics
from api.auth.audit_entries import record_audit_entry
from api.auth.principals import PrincipalDep, ServicesDep
from api.batches.dead_letter_objects import (
    dead_letter_detail_object,
    dead_letter_object,
    parse_dead_letter_id,
)
from api.files.uploads import UploadLimits, storage_quota, upload_limits
from api.http.paging import LIMIT_DEFAULT, Limit
from api.http.request_bodies import body_sha256, json_body
from api.http.responses import json_response
from api.idempotency.idempotent_requests import (
    IdempotencyContext,
    execute_once,
    find_saved_answer,
    idempotency_of_request,
    saved_response,
)
from api.resources import batch_object, page_object
from api.runtime.services import Services
from core.ids import JOB, new_uuid, parse_public_id, public_id
from core.object_names import FILES
from jobs.errors import (
    DeadLetterMissingError,
    FieldRefusedError,
    JobMissingError,
    RequestRefusedError,
)
from jobs.store.batches import checked_window_s, create_job
from jobs.store.files import INPUT_EXPIRES_AFTER_S, INPUT_PURPOSE, NewFile, add_upload
from jobs.store.idempotency import Answer
from jobs.store.keyset_pages import unknown_cursor
from jobs.store.open_batches import require_room
from jobs.store.redrive import (
    REDRIVE_MAX,
    Redrive,
    check_edits,
    choose,
    edited_lines,
    mark_redriven,
    redrive_job,
)
from results.views.dead_letters import find_dead, list_dead, readable_body
from storage.objects.object_store import ObjectStore, StoredObject
from tenancy.audit_log import Action, Details

router = APIRouter()


class RedriveBody(msgspec.Struct):
    """What to run again: `ids` of one batch, or all of `batch` that nobody has redriven yet."""

    batch: str | None = None
    ids: list[str] | None = None
    edits: dict[str, Any] = {}  # a JSON merge patch (RFC 7396) for the body of every line
    completion_window: str | None = None  # as the old batch had
    metadata: dict[str, str] | None = None  # as the old batch had, and `redrive_of`


@router.get("/v1/dead_letters")
async def show_list(
    principal: PrincipalDep,
    services: ServicesDep,
    batch: str | None = None,
    limit: Limit = LIMIT_DEFAULT,
    after: str | None = None,
) -> Response:
    """List dead letters: of a batch in the order of its lines, else the newest first."""
    place = None if after is None else parse_dead_letter_id(after)
    if after is not None and place is None:
        raise unknown_cursor()
    page = await services.database.run_for_tenant(
        principal.tenant_id,
        list_dead,
        principal.tenant_id,
        job_id=None if batch is None else _job_id(batch),
        after=place,
        limit=limit,
    )
    return json_response(page_object(page, dead_letter_object))


@router.get("/v1/dead_letters/{letter_id}")
async def show(letter_id: str, principal: PrincipalDep, services: ServicesDep) -> Response:
    """Show one with all its attempts and its last answer."""
    place = parse_dead_letter_id(letter_id)
    view = await services.database.run_for_tenant(
        principal.tenant_id, find_dead, principal.tenant_id, place
    )
    body = view.row.body
    if view.row.zero_retention:
        body = await asyncio.to_thread(readable_body, services.objects, view.row)
    return json_response(dead_letter_detail_object(view, body))


@router.post("/v1/dead_letters/redrive")
async def redrive(request: Request, principal: PrincipalDep, services: ServicesDep) -> Response:
    """Make a new batch of dead letters and answer with it."""
    repeats = idempotency_of_request(request, principal, services)
    body = await json_body(request, RedriveBody, services.settings)
    # What was redriven under this key is chosen no more.
    known = await find_saved_answer(repeats, services, body_sha256(request))
    if known is not None:
        return saved_response(known, is_replay=True)
    check_edits(body.edits)
    wanted = _chosen(body)
    with services.redrives.acquire(principal.tenant_id):
        chosen = await services.database.run_for_tenant(
            principal.tenant_id, choose, principal.tenant_id, *wanted
        )
        return await _add_job(body, body_sha256(request), chosen, repeats, services)


async def _add_job(
    body: RedriveBody,
    sha256: bytes,
    chosen: Redrive,
    repeats: IdempotencyContext,
    services: Services,
) -> Response:
    """Store the file and add its job.

    What can be refused without the file is refused before it is written.
    """
    principal, settings = repeats.principal, services.settings
    file_id = new_uuid()
    new = redrive_job(
        chosen, file_id, completion_window=body.completion_window, metadata=body.metadata
    )
    checked_window_s(new)
    open_max = settings.open_batches_max
    await services.database.run_for_tenant(
        principal.tenant_id, require_room, principal.tenant_id, open_max=open_max
    )
    limits = await upload_limits(principal.tenant_id, services)
    lines = edited_lines(services.objects, chosen, body.edits)
    stored = await asyncio.to_thread(_store, services.objects, file_id, lines, limits)
    file = NewFile(
        file_id=file_id,
        tenant_id=principal.tenant_id,
        purpose=INPUT_PURPOSE,
        filename=f"redrive_of_{public_id(JOB, chosen.job.id)}.jsonl",
        object_key=stored.key,
        size_bytes=stored.size_bytes,
        sha256=stored.sha256_hex,
        expires_after_s=INPUT_EXPIRES_AFTER_S,
    )

    def work(connection: sa.Connection) -> Answer:
        add_upload(connection, file, storage_quota(settings))
        row = create_job(connection, principal.tenant_id, new, open_max=open_max)
        mark_redriven(connection, chosen, row.id)
        told: Details = {"batch": public_id(JOB, chosen.job.id), "is_edited": bool(body.edits)}
        record_audit_entry(
            connection, principal, Action.ITEMS_REDRIVEN, public_id(JOB, row.id), told
        )
        return Answer(200, msgspec.json.encode(batch_object(row)))

    try:
        answer, is_replay = await execute_once(repeats, services, sha256, work)
    except RequestRefusedError:
        # Any other failure may hide a row that was committed: an orphan is better than a lie.
        await asyncio.to_thread(services.objects.delete, stored.key)
        raise
    if is_replay:
        await asyncio.to_thread(services.objects.delete, stored.key)
    else:
        metrics.JOBS_CREATED.labels(new.endpoint).inc()
    return saved_response(answer, is_replay=is_replay)


def _chosen(body: RedriveBody) -> tuple[UUID, list[int] | None]:
    """Return the job and its items; None for all. Raises FieldRefusedError, …MissingError."""
    if (body.ids is None) == (body.batch is None):
        raise FieldRefusedError("Give either 'ids' or 'batch'.", param="ids")
    if body.ids is None:
        return _job_id(body.batch or ""), None
    if not 0 < len(body.ids) <= REDRIVE_MAX:
        raise FieldRefusedError(f"Give 1 to {REDRIVE_MAX} ids.", param="ids")
    places = [place for place in map(parse_dead_letter_id, body.ids) if place is not None]
    if len(places) < len(body.ids):
        raise DeadLetterMissingError
    if len({place.job_id for place in places}) > 1:
        raise FieldRefusedError("All ids must be of one batch.", param="ids")
    return places[0].job_id, [place.item_index for place in places]


def _store(
    objects: ObjectStore, file_id: UUID, lines: Iterable[bytes], limits: UploadLimits
) -> StoredObject:
    """Write no more than an upload might bring: edits are added to each line.

    Raises what `UploadLimits.check`, the lines and a store raise; then no object is left.
    """
    size_bytes = 0
    with objects.begin(f"{FILES}{file_id.hex}") as upload:
        for line in lines:
            size_bytes += len(line) + 1
            limits.check(size_bytes)
            upload.write(line + b"\n")
        return upload.complete(if_absent=True)


def _job_id(text: str) -> UUID:
    job_id = parse_public_id(JOB, text)
    if job_id is None:
        raise JobMissingError
    return job_id
