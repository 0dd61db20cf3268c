"""Routes of batches, compatible with OpenAI's clients. A batch is a job."""

import asyncio
import re
from contextlib import suppress
from typing import Final, Literal

import msgspec
import sqlalchemy as sa
from fastapi import APIRouter, Request, Response

from api import metrics
from api.auth.audit_entries import record_audit_entry
from api.auth.authentication import PrincipalDep, ServicesDep
from api.batches import batch_control_routes
from api.batches.batch_control_routes import batch_answer
from api.http.paging import LIMIT_DEFAULT, Limit, parse_after
from api.http.request_bodies import NO_BODY_SHA256, body_sha256, json_body
from api.http.responses import json_response
from api.idempotency.idempotent_requests import (
    execute_once,
    find_saved_answer,
    idempotency_of_request,
    saved_response,
)
from api.resources import batch_object, page_object
from api.webhooks.webhook_services import WebhookServicesDep
from core.errors import MillraceError
from core.ids import FILE, JOB, parse_public_id, public_id
from core.urgency import PRIORITY_DEFAULT
from jobs.errors import JobNotFoundError
from jobs.store.batches import NewJob, cancel_job, create_job, find_job_with_errors, list_jobs
from jobs.store.idempotency import StoredAnswer
from jobs.store.job_budgets import JobBudget
from jobs.store.job_key import destroy_job_key
from jobs.store.job_options import JobOptions
from jobs.store.keyset_pages import PageCursor
from results.retention.deletion import delete_batch
from results.webhooks.endpoints.callbacks import add_callback
from tenancy.audit_log import Action

router = APIRouter()
router.include_router(batch_control_routes.router)

_TRACEPARENT: Final = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


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
    max_failed_items: int | None = None  # extension
    max_failed_ratio: float | None = None  # extension
    failed_ratio_sample: int | None = None  # extension
    max_total_tokens: int | None = None  # extension


@router.post("/v1/batches")
async def create(
    request: Request, principal: PrincipalDep, services: ServicesDep, webhooks: WebhookServicesDep
) -> Response:
    """Create a job. Once answered, it survives any crash."""
    context = idempotency_of_request(request, principal, services)
    body = await json_body(request, BatchBody, services.settings)
    expiry = body.output_expires_after
    traceparent = _TRACEPARENT.fullmatch(request.headers.get("traceparent", ""))
    new = NewJob(
        input_file_id=parse_public_id(FILE, body.input_file_id),
        endpoint=body.endpoint,
        completion_window=body.completion_window,
        metadata=body.metadata,
        output_expires_after_s=expiry.seconds if expiry else None,
        traceparent=traceparent[0] if traceparent else "",
        options=_options(body),
    )

    if body.callback_url is not None:  # a new look-up of its host may fail
        saved = await find_saved_answer(context, services, body_sha256(request))
        if saved is not None:
            return saved_response(saved, is_replay=True)
    callback = await webhooks.validate_callback(
        principal.tenant_id, body.callback_url, body.callback_events
    )

    def work(connection: sa.Connection) -> StoredAnswer:
        row = create_job(
            connection, principal.tenant_id, new, open_max=services.settings.open_batches_max
        )
        if callback is not None:
            add_callback(connection, principal.tenant_id, row.id, callback, webhooks.sealer)
        details = {"input_file": body.input_file_id, "endpoint": body.endpoint}
        record_audit_entry(
            connection, principal, Action.JOB_CREATED, public_id(JOB, row.id), details
        )
        return batch_answer(row)

    answer, is_replay = await execute_once(context, services, body_sha256(request), work)
    if not is_replay:
        metrics.JOBS_CREATED.labels(body.endpoint).inc()
    return saved_response(answer, is_replay=is_replay)


@router.get("/v1/batches")
async def show_list(
    principal: PrincipalDep,
    services: ServicesDep,
    limit: Limit = LIMIT_DEFAULT,
    after: str | None = None,
) -> Response:
    """List jobs, newest first."""
    cursor = PageCursor(limit=limit, after=parse_after(JOB, after))
    page = await services.database.run_for_tenant(
        principal.tenant_id, list_jobs, principal.tenant_id, cursor
    )
    return json_response(page_object(page, batch_object))


@router.get("/v1/batches/{batch_id}")
async def show(batch_id: str, principal: PrincipalDep, services: ServicesDep) -> Response:
    """Show a job."""
    job_id = parse_public_id(JOB, batch_id)
    row = await services.database.run_for_tenant(
        principal.tenant_id, find_job_with_errors, principal.tenant_id, job_id
    )
    return json_response(batch_object(row))


@router.post("/v1/batches/{batch_id}/cancel")
async def cancel(
    request: Request, batch_id: str, principal: PrincipalDep, services: ServicesDep
) -> Response:
    """Cancel a job; any body is ignored. Clients send an empty one with a JSON media type."""
    job_id = parse_public_id(JOB, batch_id)
    context = idempotency_of_request(request, principal, services)

    def work(connection: sa.Connection) -> StoredAnswer:
        row = cancel_job(connection, principal.tenant_id, job_id)
        record_audit_entry(connection, principal, Action.JOB_CANCELLED, public_id(JOB, row.id))
        return batch_answer(row)

    answer, is_replay = await execute_once(context, services, NO_BODY_SHA256, work)
    return saved_response(answer, is_replay=is_replay)


@router.delete("/v1/batches/{batch_id}")
async def delete(batch_id: str, principal: PrincipalDep, services: ServicesDep) -> Response:
    """Delete a job that has ended, with all its data except its entry in the ledger."""
    job_id = parse_public_id(JOB, batch_id)
    if job_id is None:
        raise JobNotFoundError
    batch_public_id = public_id(JOB, job_id)

    def work(connection: sa.Connection) -> None:
        counts = delete_batch(connection, principal.tenant_id, job_id, key_id=principal.key_id)
        record_audit_entry(connection, principal, Action.JOB_DELETED, batch_public_id, counts)

    await services.database.run_for_tenant(principal.tenant_id, work)
    if principal.zero_retention:
        with suppress(MillraceError):  # a finaliser retries it
            await asyncio.to_thread(destroy_job_key, services.objects, job_id)
    return json_response({"id": batch_public_id, "object": "batch", "deleted": True})


def _options(body: BatchBody) -> JobOptions:
    budget = JobBudget(
        max_failed_items=body.max_failed_items,
        max_failed_ratio=body.max_failed_ratio,
        failed_ratio_sample=body.failed_ratio_sample,
        max_total_tokens=body.max_total_tokens,
    )
    return JobOptions(
        priority=body.priority, sealed=body.sealed, deduplicate=body.deduplicate, budget=budget
    )
