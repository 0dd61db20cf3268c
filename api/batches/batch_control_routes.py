"""Routes that control running batches: change, append, pause, resume, seal.

They extend OpenAI's API and do not affect batches that use none of them. An action that can be
undone and repeated ignores retry counts, because its saved answer may be outdated; only an
idempotency key of the client marks a retry.
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any
from uuid import UUID

import msgspec
import sqlalchemy as sa
from fastapi import APIRouter, Request, Response

from api.auth.audit_entries import record_audit_entry
from api.auth.authentication import PrincipalDep, ServicesDep
from api.http.request_bodies import NO_BODY_SHA256, body_sha256, json_body
from api.idempotency.idempotent_requests import (
    IdempotencyContext,
    execute_once,
    idempotency_of_request,
    saved_response,
)
from api.resources import batch_object
from api.runtime.api_services import Services
from core.ids import FILE, JOB, parse_public_id, public_id
from jobs.store.appending import append_file, seal_job
from jobs.store.controls import JobChange, change_job, pause_job, resume_job
from jobs.store.idempotency import StoredAnswer
from tenancy.audit_log import Action

router = APIRouter()


class ChangeBody(msgspec.Struct):
    """The fields to change; unknown fields are ignored."""

    completion_window: str | None = None
    expires_at: int | None = None
    priority: int | None = None


class AppendBody(msgspec.Struct):
    """The file to append; unknown fields are ignored."""

    input_file_id: str


@router.post("/v1/batches/{batch_id}")
async def change(
    request: Request, batch_id: str, principal: PrincipalDep, services: ServicesDep
) -> Response:
    """Change the deadline or the priority of a job."""
    context = idempotency_of_request(request, principal, services).for_client_key_only()
    body = await json_body(request, ChangeBody, services.settings)
    job_change = JobChange(
        completion_window=body.completion_window,
        expires_at_s=body.expires_at,
        priority=body.priority,
    )
    job_id = parse_public_id(JOB, batch_id)

    def work(connection: sa.Connection) -> StoredAnswer:
        row = change_job(connection, principal.tenant_id, job_id, job_change)
        changed_fields = {
            name: value for name, value in asdict(job_change).items() if value is not None
        }
        record_audit_entry(
            connection, principal, Action.JOB_UPDATED, public_id(JOB, row.id), changed_fields
        )
        return batch_answer(row)

    answer, is_replay = await execute_once(context, services, body_sha256(request), work)
    return saved_response(answer, is_replay=is_replay)


@router.post("/v1/batches/{batch_id}/append")
async def append(
    request: Request, batch_id: str, principal: PrincipalDep, services: ServicesDep
) -> Response:
    """Append an input file to a job that is not sealed."""
    context = idempotency_of_request(request, principal, services)
    body = await json_body(request, AppendBody, services.settings)
    job_id, file_id = parse_public_id(JOB, batch_id), parse_public_id(FILE, body.input_file_id)

    def work(connection: sa.Connection) -> StoredAnswer:
        row = append_file(connection, principal.tenant_id, job_id, file_id)
        details = {"input_file": body.input_file_id}
        record_audit_entry(
            connection, principal, Action.JOB_APPENDED, public_id(JOB, row.id), details
        )
        return batch_answer(row)

    answer, is_replay = await execute_once(context, services, body_sha256(request), work)
    return saved_response(answer, is_replay=is_replay)


@router.post("/v1/batches/{batch_id}/pause")
async def pause(
    request: Request, batch_id: str, principal: PrincipalDep, services: ServicesDep
) -> Response:
    """Pause a job; any body is ignored."""
    context = idempotency_of_request(request, principal, services).for_client_key_only()
    return await _apply_control((pause_job, Action.JOB_PAUSED), context, batch_id, services)


@router.post("/v1/batches/{batch_id}/resume")
async def resume(
    request: Request, batch_id: str, principal: PrincipalDep, services: ServicesDep
) -> Response:
    """Resume a paused job; any body is ignored."""
    context = idempotency_of_request(request, principal, services).for_client_key_only()
    return await _apply_control((resume_job, Action.JOB_RESUMED), context, batch_id, services)


@router.post("/v1/batches/{batch_id}/seal")
async def seal(
    request: Request, batch_id: str, principal: PrincipalDep, services: ServicesDep
) -> Response:
    """Seal a job, which then accepts no more files; any body is ignored."""
    context = idempotency_of_request(request, principal, services)
    return await _apply_control((seal_job, Action.JOB_SEALED), context, batch_id, services)


def batch_answer(row: sa.Row[Any]) -> StoredAnswer:
    """Return a batch as the answer to a POST, which is saved for replays."""
    return StoredAnswer(200, msgspec.json.encode(batch_object(row)))


async def _apply_control(
    control: tuple[Callable[[sa.Connection, UUID, UUID | None], sa.Row[Any]], Action],
    context: IdempotencyContext,
    batch_id: str,
    services: Services,
) -> Response:
    job_id, principal = parse_public_id(JOB, batch_id), context.principal
    apply_to_job, action = control

    def work(connection: sa.Connection) -> StoredAnswer:
        row = apply_to_job(connection, principal.tenant_id, job_id)
        record_audit_entry(connection, principal, action, public_id(JOB, row.id))
        return batch_answer(row)

    answer, is_replay = await execute_once(context, services, NO_BODY_SHA256, work)
    return saved_response(answer, is_replay=is_replay)
