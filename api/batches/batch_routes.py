"""Routes of batches, compatible with OpenAI's clients. A batch is a job.

The routes that change, append to, pause, resume and seal a running batch extend OpenAI's API. They
do not affect batches that use none of them. An action that can be undone and repeated ignores retry
counts, because its saved answer may be outdated; only an idempotency key of the client marks a
retry.
"""

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID

import msgspec
import sqlalchemy as sa
from fastapi import APIRouter, Response

from api import metrics
from api.auth.authentication import TenantRequestDep
from api.batches.batch_admission import BatchAdmissionDep
from api.http.paging import PageDep, page_response
from api.http.responses import json_response
from api.idempotent_requests import IdempotentRequest, IdempotentRequestDep, saved_response
from api.resources import batch_object
from api.views.view_services import ViewServicesDep
from api.webhooks.webhook_services import WebhookServicesDep
from core.errors import MillraceError
from core.ids import FILE, JOB, parse_public_id, public_id
from core.urgency import PRIORITY_DEFAULT
from jobs.errors import JobNotFoundError
from jobs.store.batches import NewJob, cancel_job, create_job, find_job, list_jobs
from jobs.store.controls import JobChange, append_file, change_job, pause_job, resume_job, seal_job
from jobs.store.job_options import JobBudget, JobOptions
from jobs.store.removable_objects import destroy_job_key
from results.retention.deletion import delete_batch
from results.webhooks.endpoints.callbacks import add_callback
from tenancy.audit_log import Action, Details

router = APIRouter()

_TRACEPARENT: Final = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


_Control: TypeAlias = Callable[[sa.Connection, UUID, UUID | None], sa.Row[Any]]
"""Controls a job of a tenant, and returns its row."""


class OutputExpiry(msgspec.Struct):
    """When the result files of a job expire."""

    anchor: Literal["created_at"]
    seconds: int


class BatchBody(msgspec.Struct):
    """The body of a new batch; unknown fields are ignored."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: OutputExpiry | None = None
    callback_url: str | None = None  # extension: receives the events of this job only
    callback_events: list[str] | None = None  # extension
    priority: int = PRIORITY_DEFAULT  # extension
    sealed: bool = True  # extension: False allows files to be appended
    deduplicate: bool = False  # extension: identical items are executed once
    not_before: int | None = None  # extension: no item runs before, seconds since the epoch
    bulk_hours: str | None = None  # extension: the hours in which its items may run
    max_failed_items: int | None = None  # extension
    max_failed_ratio: float | None = None  # extension
    failed_ratio_sample: int | None = None  # extension
    max_total_tokens: int | None = None  # extension


class ChangeBody(msgspec.Struct):
    """The fields to change; unknown fields are ignored."""

    completion_window: str | None = None
    expires_at: int | None = None
    priority: int | None = None
    not_before: int | None = None  # 0 removes it
    bulk_hours: str | None = None  # an empty text removes them


class AppendBody(msgspec.Struct):
    """The file to append; unknown fields are ignored."""

    input_file_id: str


@router.post("/v1/batches/{batch_id}")
async def change(batch_id: str, request: IdempotentRequestDep) -> Response:
    """Change the deadline, the priority or the schedule of a job."""
    body = await request.json_body(ChangeBody)
    job_change = JobChange(
        completion_window=body.completion_window,
        expires_at_s=body.expires_at,
        priority=body.priority,
        not_before_s=body.not_before,
        bulk_hours=body.bulk_hours,
    )
    changed = {name: value for name, value in asdict(job_change).items() if value is not None}
    control = partial(change_job, change=job_change)
    return await _control(
        request.for_client_key_only(), batch_id, control, Action.JOB_UPDATED, changed
    )


@router.post("/v1/batches/{batch_id}/append")
async def append(batch_id: str, request: IdempotentRequestDep) -> Response:
    """Append an input file to a job that is not sealed."""
    body = await request.json_body(AppendBody)
    control = partial(append_file, file_id=parse_public_id(FILE, body.input_file_id))
    details = {"input_file": body.input_file_id}
    return await _control(request, batch_id, control, Action.JOB_APPENDED, details)


@router.post("/v1/batches/{batch_id}/pause")
async def pause(batch_id: str, request: IdempotentRequestDep) -> Response:
    """Pause a job; any body is ignored."""
    return await _control(request.for_client_key_only(), batch_id, pause_job, Action.JOB_PAUSED)


@router.post("/v1/batches/{batch_id}/resume")
async def resume(batch_id: str, request: IdempotentRequestDep) -> Response:
    """Resume a paused job; any body is ignored."""
    return await _control(request.for_client_key_only(), batch_id, resume_job, Action.JOB_RESUMED)


@router.post("/v1/batches/{batch_id}/seal")
async def seal(batch_id: str, request: IdempotentRequestDep) -> Response:
    """Seal a job, which then accepts no more files; any body is ignored."""
    return await _control(request, batch_id, seal_job, Action.JOB_SEALED)


@router.post("/v1/batches")
async def create(
    request: IdempotentRequestDep, webhooks: WebhookServicesDep, admission: BatchAdmissionDep
) -> Response:
    """Create a job. Once answered, it survives any crash."""
    body = await request.json_body(BatchBody)
    new = _new_job(body, request.http.headers.get("traceparent", ""))
    refusal = admission and await admission.refusal(request, new.input_file_id, new.endpoint)
    if refusal or body.callback_url is not None:  # a new look-up of its host may fail
        saved = await request.find_saved_answer()
        if saved is not None:
            return saved_response(saved, is_replay=True)
    if refusal:
        raise refusal
    tenant_id, open_max = request.tenant_id, request.services.settings.open_batches_max
    callback = await webhooks.validate_callback(tenant_id, body.callback_url, body.callback_events)

    def work(connection: sa.Connection) -> object:
        row = create_job(connection, tenant_id, new, open_max=open_max)
        if callback is not None:
            add_callback(connection, tenant_id, row.id, callback, webhooks.sealer)
        details = {"input_file": body.input_file_id, "endpoint": body.endpoint}
        request.record_audit_entry(connection, Action.JOB_CREATED, public_id(JOB, row.id), details)
        return batch_object(row)

    answer, is_replay = await request.execute_once(work)
    if not is_replay:
        metrics.JOBS_CREATED.labels(body.endpoint).inc()
        if admission is not None:
            await admission.wake(request, new.input_file_id, new.endpoint)
    return saved_response(answer, is_replay=is_replay)


@router.get("/v1/batches")
async def show_list(request: TenantRequestDep, page: PageDep) -> Response:
    """List jobs, newest first."""
    found = await request.run(list_jobs, page.cursor(JOB))
    return page_response((found.rows, found.has_more), batch_object)


@router.get("/v1/batches/{batch_id}")
async def show(batch_id: str, request: TenantRequestDep, views: ViewServicesDep) -> Response:
    """Show a job, with its estimated end and what its items wait for."""
    row = await request.run(find_job, parse_public_id(JOB, batch_id), with_errors=True)
    return json_response(batch_object(row, await views.estimates.fields(row)))


@router.post("/v1/batches/{batch_id}/cancel")
async def cancel(batch_id: str, request: IdempotentRequestDep) -> Response:
    """Cancel a job; any body is ignored. Clients send an empty one with a JSON media type."""
    return await _control(request, batch_id, cancel_job, Action.JOB_CANCELLED)


@router.delete("/v1/batches/{batch_id}")
async def delete(batch_id: str, request: TenantRequestDep) -> Response:
    """Delete a job that has ended, with all its data except its entry in the ledger."""
    job_id = parse_public_id(JOB, batch_id)
    if job_id is None:
        raise JobNotFoundError
    batch_public_id = public_id(JOB, job_id)

    def work(connection: sa.Connection, tenant_id: UUID) -> None:
        counts = delete_batch(connection, tenant_id, job_id, key_id=request.principal.key_id)
        request.record_audit_entry(connection, Action.JOB_DELETED, batch_public_id, counts)

    await request.run(work)
    if request.principal.zero_retention:
        with suppress(MillraceError):  # a finaliser retries it
            await asyncio.to_thread(destroy_job_key, request.services.objects, job_id)
    return json_response({"id": batch_public_id, "object": "batch", "deleted": True})


async def _control(
    request: IdempotentRequest,
    batch_id: str,
    control: _Control,
    action: Action,
    details: Details | None = None,
) -> Response:
    """Apply `control` to a job, record the action, and show the job."""
    job_id = parse_public_id(JOB, batch_id)

    def work(connection: sa.Connection) -> object:
        row = control(connection, request.tenant_id, job_id)
        request.record_audit_entry(connection, action, public_id(JOB, row.id), details)
        return batch_object(row)

    return await request.answer_once(work)


def _new_job(body: BatchBody, traceparent: str) -> NewJob:
    match = _TRACEPARENT.fullmatch(traceparent)
    return NewJob(
        input_file_id=parse_public_id(FILE, body.input_file_id),
        endpoint=body.endpoint,
        completion_window=body.completion_window,
        metadata=body.metadata,
        output_expires_after_s=(
            body.output_expires_after.seconds if body.output_expires_after else None
        ),
        traceparent=match[0] if match else "",
        options=JobOptions(
            priority=body.priority,
            sealed=body.sealed,
            deduplicate=body.deduplicate,
            not_before_s=body.not_before,
            bulk_hours=body.bulk_hours,
            budget=JobBudget(
                max_failed_items=body.max_failed_items,
                max_failed_ratio=body.max_failed_ratio,
                failed_ratio_sample=body.failed_ratio_sample,
                max_total_tokens=body.max_total_tokens,
            ),
        ),
    )
