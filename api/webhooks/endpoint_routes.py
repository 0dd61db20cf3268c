"""Routes of webhook endpoints and their secrets, compatible with OpenAI's clients.

A signing secret is shown only in the response that creates it and in replays of that response.
"""

import base64
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any
from uuid import UUID

import msgspec
import sqlalchemy as sa
from fastapi import APIRouter, Response

from api.auth.authentication import TenantRequestDep
from api.http.errors import ApiError
from api.http.paging import PageDep, page_response
from api.http.responses import json_response
from api.idempotent_requests import IdempotentRequestDep, saved_response
from api.resources import seconds
from api.webhooks.webhook_services import WebhookServicesDep
from core.ids import JOB, parse_public_id, public_id
from core.webhook_signatures import secret_text
from jobs.store.idempotency import StoredAnswer
from results.webhooks.endpoints.callbacks import rotate_callback_secret
from results.webhooks.endpoints.endpoints import (
    ENDPOINT,
    EndpointChange,
    change_endpoint,
    create_endpoint,
    delete_endpoint,
    find_callback,
    find_endpoint,
    list_endpoints,
    rotate_secret,
)
from results.webhooks.endpoints.signing_secrets import (
    SecretCipher,
    SecretUnreadableError,
    secret_hint,
)
from results.webhooks.events.messages import EVENT_TYPES
from tenancy.audit_log import Action

router = APIRouter()


class NewEndpointBody(msgspec.Struct):
    """The body of a new endpoint."""

    name: str
    url: str
    event_types: list[str]


class EndpointChangeBody(msgspec.Struct):
    """The fields to change; `enabled` extends OpenAI's API."""

    name: str | None = None
    url: str | None = None
    event_types: list[str] | None = None
    enabled: bool | None = None


class RotateBody(msgspec.Struct):
    """How long the old secret stays valid."""

    keep_old_secret_active_for_24_hours: bool = False


@router.get("/v1/webhook_event_types")
async def show_event_types(_: TenantRequestDep) -> Response:
    """List the event types."""
    return json_response({"object": "list", "data": list(EVENT_TYPES)})


@router.post("/v1/webhook_endpoints")
async def create(request: IdempotentRequestDep, webhooks: WebhookServicesDep) -> Response:
    """Create an endpoint. Only this response and its replays contain the secret."""
    tenant_id, sealer = request.tenant_id, webhooks.sealer
    body = await request.json_body(NewEndpointBody)
    new = EndpointChange(body.name, body.url, body.event_types)
    endpoints_max = webhooks.settings.endpoints_max

    def work(connection: sa.Connection) -> object:
        row, secret = create_endpoint(
            connection, tenant_id, new, sealer, endpoints_max=endpoints_max
        )
        request.record_audit_entry(connection, Action.ENDPOINT_CREATED, public_id(ENDPOINT, row.id))
        return _with_encrypted_secret(endpoint_object(row), secret, sealer, tenant_id)

    answer, is_replay = await request.find_saved_answer(), True
    if answer is None:
        await webhooks.validate_url(tenant_id, body.url, param="url")
        answer, is_replay = await request.execute_once(work)
    return saved_response(_decrypted(answer, sealer, tenant_id), is_replay=is_replay)


@router.get("/v1/webhook_endpoints")
async def show_list(request: TenantRequestDep, page: PageDep) -> Response:
    """List endpoints, newest first."""
    found = await request.run(list_endpoints, page.cursor(ENDPOINT))
    return page_response((found.rows, found.has_more), endpoint_object)


@router.get("/v1/webhook_endpoints/{endpoint_id}")
async def show(endpoint_id: str, request: TenantRequestDep) -> Response:
    """Show an endpoint."""
    row = await request.run(find_endpoint, parse_public_id(ENDPOINT, endpoint_id))
    return json_response(endpoint_object(row))


@router.get("/v1/batches/{batch_id}/callback")
async def show_callback(batch_id: str, request: TenantRequestDep) -> Response:
    """Show the callback of a job as an endpoint, whose id the other routes accept."""
    row = await request.run(find_callback, parse_public_id(JOB, batch_id))
    return json_response(endpoint_object(row))


@router.post("/v1/webhook_endpoints/{endpoint_id}")
async def change(
    endpoint_id: str, request: IdempotentRequestDep, webhooks: WebhookServicesDep
) -> Response:
    """Change an endpoint; omitted fields stay the same."""
    request = request.for_client_key_only()
    body = await request.json_body(EndpointChangeBody)
    parsed_id = parse_public_id(ENDPOINT, endpoint_id)
    changed = EndpointChange(body.name, body.url, body.event_types, body.enabled)
    details = {"fields": [name for name, value in asdict(changed).items() if value is not None]}

    def work(connection: sa.Connection) -> object:
        row = change_endpoint(connection, request.tenant_id, parsed_id, changed)
        request.record_audit_entry(
            connection, Action.ENDPOINT_CHANGED, public_id(ENDPOINT, row.id), details
        )
        return endpoint_object(row)

    answer, is_replay = await request.find_saved_answer(), True
    if answer is None:
        if body.url is not None:
            await webhooks.validate_url(request.tenant_id, body.url, param="url")
        answer, is_replay = await request.execute_once(work)
    return saved_response(answer, is_replay=is_replay)


@router.delete("/v1/webhook_endpoints/{endpoint_id}")
async def delete(endpoint_id: str, request: TenantRequestDep) -> Response:
    """Delete an endpoint with its history."""
    parsed_id = parse_public_id(ENDPOINT, endpoint_id)

    def work(connection: sa.Connection, tenant_id: UUID) -> None:
        delete_endpoint(connection, tenant_id, parsed_id)
        request.record_audit_entry(connection, Action.ENDPOINT_DELETED, endpoint_id)

    await request.run(work)
    deleted = {"id": endpoint_id, "object": "webhook_endpoint.deleted", "deleted": True}
    return json_response(deleted)


@router.post("/v1/webhook_endpoints/{endpoint_id}/rotate_secret")
async def rotate(
    endpoint_id: str, request: IdempotentRequestDep, webhooks: WebhookServicesDep
) -> Response:
    """Rotate the secret of an endpoint."""
    tenant_id, sealer = request.tenant_id, webhooks.sealer
    keep_old = (await request.json_body(RotateBody)).keep_old_secret_active_for_24_hours
    parsed_id = parse_public_id(ENDPOINT, endpoint_id)

    def work(connection: sa.Connection) -> object:
        row, secret = rotate_secret(connection, tenant_id, parsed_id, sealer, keep_old=keep_old)
        details = {"keep_old": keep_old}
        request.record_audit_entry(connection, Action.SECRET_ROTATED, endpoint_id, details)
        return _with_encrypted_secret(endpoint_object(row), secret, sealer, tenant_id)

    answer, is_replay = await request.execute_once(work)
    return saved_response(_decrypted(answer, sealer, tenant_id), is_replay=is_replay)


@router.post("/v1/webhook_callback_secret/rotate")
async def rotate_for_callbacks(
    request: IdempotentRequestDep, webhooks: WebhookServicesDep
) -> Response:
    """Rotate the secret for the callbacks of all jobs of the tenant."""
    tenant_id, sealer = request.tenant_id, webhooks.sealer
    keep_old = (await request.json_body(RotateBody)).keep_old_secret_active_for_24_hours

    def work(connection: sa.Connection) -> object:
        secret = rotate_callback_secret(connection, tenant_id, sealer, keep_old=keep_old)
        details = {"keep_old": keep_old}
        request.record_audit_entry(connection, Action.SECRET_ROTATED, "callbacks", details)
        shown = {"object": "webhook_callback_secret", "signing_secret_hint": secret_hint(secret)}
        return _with_encrypted_secret(shown, secret, sealer, tenant_id)

    answer, is_replay = await request.execute_once(work)
    return saved_response(_decrypted(answer, sealer, tenant_id), is_replay=is_replay)


def endpoint_object(row: sa.Row[Any]) -> dict[str, object]:
    """Return an endpoint without its secret."""
    return {
        "id": public_id(ENDPOINT, row.id),
        "object": "webhook_endpoint",
        "created_at": seconds(row.created_at),
        "updated_at": seconds(row.updated_at),
        "name": row.name,
        "url": row.url,
        "event_types": row.event_types,
        "signing_secret_hint": row.secret_hint or None,
        "millrace": {
            "enabled": row.disabled_at is None,
            "disabled_at": seconds(row.disabled_at),
            "disabled_reason": row.disabled_reason,
            "batch_id": None if row.job_id is None else public_id(JOB, row.job_id),
        },
    }


def _with_encrypted_secret(
    shown: Mapping[str, object], secret: bytes, sealer: SecretCipher, tenant_id: UUID
) -> dict[str, object]:
    """Return the answer to save: no stored data may contain a secret in plain text."""
    encrypted = base64.b64encode(sealer.encrypt(secret, tenant_id)).decode()
    return {**shown, "signing_secret": encrypted}


def _decrypted(answer: StoredAnswer, sealer: SecretCipher, tenant_id: UUID) -> StoredAnswer:
    """Return the answer with the secret in plain text. Every replay has the same bytes.

    Raises ApiError (410) when the encryption key is gone.
    """
    shown = msgspec.json.decode(answer.body)
    try:
        secret = sealer.decrypt(base64.b64decode(shown["signing_secret"]), tenant_id)
    except SecretUnreadableError:
        raise ApiError(410, "The stored answer is deleted.", code="answer_gone") from None
    body = msgspec.json.encode({**shown, "signing_secret": secret_text(secret)})
    return replace(answer, body=body)
