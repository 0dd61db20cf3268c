"""Routes of single requests: jobs of durable calls."""

import asyncio
from typing import Any, Final
from uuid import UUID

import msgspec
import sqlalchemy as sa
from fastapi import APIRouter, Response

from api.auth.authentication import TenantRequestDep
from api.http.errors import ApiError
from api.http.responses import json_response, memory_limited_response
from api.online.call_errors import DEADLINE, JOB_CANCELLED, deadline_exceeded, job_cancelled
from api.online.online_runtime import OnlineRuntime
from api.resources import seconds, usage_object
from api.runtime.api_services import Services
from core.ids import REQUEST, SINGLE, parse_public_id, public_id
from core.outcomes import Outcome
from core.states import JobState
from jobs.store.single_requests import cancel_request, find_request
from results.retention.deletion import delete_ended_request
from storage.objects.errors import ObjectNotFoundError
from storage.objects.object_store import read_object
from tenancy.audit_log import Action

router = APIRouter()

_TIMESTAMPS: Final = ("created_at", "expires_at", "completed_at", "expired_at", "cancelled_at")

_ERRORS: Final = {
    Outcome.CANCELLED: (JOB_CANCELLED, job_cancelled().message),
    Outcome.EXPIRED: (DEADLINE, deadline_exceeded().message),
}


@router.get("/v1/jobs/{job_id}")
async def show(job_id: str, request: TenantRequestDep) -> Response:
    """Show a job and its response, if there is one."""
    row = await request.run(find_request, parse_public_id(SINGLE, job_id))
    return memory_limited_response(request, await _job_object(row, request.services))


@router.delete("/v1/jobs/{job_id}")
async def cancel(job_id: str, request: TenantRequestDep, cancel_only: bool = False) -> Response:
    """Cancel a job, whose output so far is lost; delete one that has ended, with its answer.

    With `cancel_only` a job that has ended is refused and stays.
    """
    request_id = parse_public_id(SINGLE, job_id)

    def work(connection: sa.Connection, tenant_id: UUID) -> sa.Row[Any] | None:
        key_id = request.principal.key_id
        if not cancel_only and delete_ended_request(
            connection, tenant_id, request_id, key_id=key_id
        ):
            request.record_audit_entry(connection, Action.REQUEST_DELETED, job_id)
            return None
        row = cancel_request(connection, tenant_id, request_id)
        request.record_audit_entry(connection, Action.REQUEST_CANCELLED, public_id(SINGLE, row.id))
        return row

    row = await request.run(work)
    if row is None:
        return json_response({"id": job_id, "object": "job", "deleted": True})
    online: OnlineRuntime | None = request.http.app.state.online
    if online is not None and row.state == JobState.CANCELLING:
        online.heartbeat.abort_call(row.id)  # at once; other processes learn of it from the log
        call = online.calls.find(row.id)
        if call is not None:  # its client is connected to this process
            call.fail(job_cancelled())
    return memory_limited_response(request, await _job_object(row, request.services))


async def _job_object(row: sa.Row[Any], services: Services) -> dict[str, object]:
    return {
        "id": public_id(SINGLE, row.id),
        "object": "job",
        "status": row.state,
        "endpoint": row.endpoint,
        "model": row.model,
        "model_version": row.model_version,
        "degraded": row.degraded,
        **{name: seconds(getattr(row, name)) for name in _TIMESTAMPS},
        "response": await _response(row, services),
        "error": _error(row),
        "usage": usage_object(row),
    }


async def _response(row: sa.Row[Any], services: Services) -> dict[str, object] | None:
    """Return the engine's response, which may be an error; None without one."""
    if not row.status_code:
        return None
    body: bytes | None = row.body
    if row.body_key is not None:
        services.object_threads.require_capacity()
        try:
            body = await asyncio.to_thread(read_object, services.objects, row.body_key)
        except ObjectNotFoundError:
            raise ApiError(410, "The stored answer is deleted.", code="answer_gone") from None
    return {
        "status_code": row.status_code,
        "request_id": public_id(REQUEST, row.id),
        "body": msgspec.Raw(body) if body else None,
    }


def _error(row: sa.Row[Any]) -> dict[str, str] | None:
    if row.outcome is None or row.status_code:
        return None
    code, message = _ERRORS.get(
        Outcome(row.outcome),
        (row.error_code or "request_failed", row.error_message or "This request failed."),
    )
    return {"code": code, "message": message}
