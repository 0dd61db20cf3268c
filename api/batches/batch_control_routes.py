"""Routes by which owners control running batches: pause, change, extend and seal them.

All of it is ours; nothing here changes what OpenAI's clients see of a batch that uses none of it.
What a client may take back and do again is done again when it tries again: what was answered to an
earlier try is no longer true when another wish came between.
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any
from uuid import UUID

import msgspec
import sqlalchemy as sa
from fastapi import APIRouter, Request, Response

from api.auth.audit_entries import record_audit_entry
from api.auth.principals import PrincipalDep, ServicesDep
from api.http.request_bodies import NO_BODY_SHA256, body_sha256, json_body
from api.idempotency.idempotent_requests import (
    IdempotencyContext,
    execute_once,
    idempotency_of_request,
    saved_response,
)
from api.resources import batch_object
from api.runtime.services import Services
from core.ids import FILE, JOB, parse_public_id, public_id
from jobs.store.appending import append_file, seal_job
from jobs.store.controls import JobChange, change_job, pause_job, resume_job
from jobs.store.idempotency import Answer
from tenancy.audit_log import Action

router = APIRouter()


class ChangeBody(msgspec.Struct):
    """What to change; unknown fields are ignored."""

    completion_window: str | None = None
    expires_at: int | None = None
    priority: int | None = None


class AppendBody(msgspec.Struct):
    """Which file to append; unknown fields are ignored."""

    input_file_id: str


@router.post("/v1/batches/{batch_id}")
async def change(
    request: Request, batch_id: str, principal: PrincipalDep, services: ServicesDep
) -> Response:
    """Change the deadline or the priority of a job."""
    repeats = idempotency_of_request(request, principal, services).for_client_key_only()
    body = await json_body(request, ChangeBody, services.settings)
    wanted = JobChange(
        completion_window=body.completion_window,
        expires_at_s=body.expires_at,
        priority=body.priority,
    )
    job_id = parse_public_id(JOB, batch_id)

    def work(connection: sa.Connection) -> Answer:
        row = change_job(connection, principal.tenant_id, job_id, wanted)
        given = {name: value for name, value in asdict(wanted).items() if value is not None}
        record_audit_entry(connection, principal, Action.JOB_UPDATED, public_id(JOB, row.id), given)
        return batch_answer(row)

    answer, is_replay = await execute_once(repeats, services, body_sha256(request), work)
    return saved_response(answer, is_replay=is_replay)


@router.post("/v1/batches/{batch_id}/append")
async def append(
    request: Request, batch_id: str, principal: PrincipalDep, services: ServicesDep
) -> Response:
    """Append an input file to a job that is not sealed."""
    repeats = idempotency_of_request(request, principal, services)
    body = await json_body(request, AppendBody, services.settings)
    job_id, file_id = parse_public_id(JOB, batch_id), parse_public_id(FILE, body.input_file_id)

    def work(connection: sa.Connection) -> Answer:
        row = append_file(connection, principal.tenant_id, job_id, file_id)
        told = {"input_file": body.input_file_id}
        record_audit_entry(connection, principal, Action.JOB_APPENDED, public_id(JOB, row.id), told)
        return batch_answer(row)

    answer, is_replay = await execute_once(repeats, services, body_sha256(request), work)
    return saved_response(answer, is_replay=is_replay)


@router.post("/v1/batches/{batch_id}/pause")
async def pause(
    request: Request, batch_id: str, principal: PrincipalDep, services: ServicesDep
) -> Response:
    """Pause a job; any body is ignored."""
    repeats = idempotency_of_request(request, principal, services).for_client_key_only()
    return await _controlled((pause_job, Action.JOB_PAUSED), repeats, batch_id, services)


@router.post("/v1/batches/{batch_id}/resume")
async def resume(
    request: Request, batch_id: str, principal: PrincipalDep, services: ServicesDep
) -> Response:
    """Let a paused job go on; any body is ignored."""
    repeats = idempotency_of_request(request, principal, services).for_client_key_only()
    return await _controlled((resume_job, Action.JOB_RESUMED), repeats, batch_id, services)


@router.post("/v1/batches/{batch_id}/seal")
async def seal(
    request: Request, batch_id: str, principal: PrincipalDep, services: ServicesDep
) -> Response:
    """Take no more files for a job; any body is ignored."""
    repeats = idempotency_of_request(request, principal, services)
    return await _controlled((seal_job, Action.JOB_SEALED), repeats, batch_id, services)


def batch_answer(row: sa.Row[Any]) -> Answer:
    """Return a batch as the answer to a POST, which is kept for repetitions."""
    return Answer(200, msgspec.json.encode(batch_object(row)))


async def _controlled(
    control: tuple[Callable[[sa.Connection, UUID, UUID | None], sa.Row[Any]], Action],
    repeats: IdempotencyContext,
    batch_id: str,
    services: Services,
) -> Response:
    job_id, principal = parse_public_id(JOB, batch_id), repeats.principal
    operation, action = control

    def work(connection: sa.Connection) -> Answer:
        row = operation(connection, principal.tenant_id, job_id)
        record_audit_entry(connection, principal, action, public_id(JOB, row.id))
        return batch_answer(row)

    answer, is_replay = await execute_once(repeats, services, NO_BODY_SHA256, work)
    return saved_response(answer, is_replay=is_replay)
