"""Routes of webhook endpoints, compatible with OpenAI's clients."""

from dataclasses import asdict

import msgspec
import sqlalchemy as sa
from fastapi import APIRouter, Request, Response

from api.auth.audit_entries import record_audit_entry
from api.auth.authentication import PrincipalDep, ServicesDep
from api.http.paging import LIMIT_DEFAULT, Limit, parse_after
from api.http.request_bodies import body_sha256, json_body
from api.http.responses import json_response
from api.idempotency.idempotent_requests import (
    execute_once,
    find_saved_answer,
    idempotency_of_request,
    saved_response,
)
from api.resources import page_object
from api.webhooks.secret_routes import decrypted_answer, encrypted_answer
from api.webhooks.webhook_objects import endpoint_object
from api.webhooks.webhook_services import WebhookServicesDep
from core.ids import JOB, parse_public_id, public_id
from jobs.store.idempotency import StoredAnswer
from jobs.store.keyset_pages import PageCursor
from results.webhooks.endpoints.endpoints import (
    ENDPOINT,
    EndpointChange,
    change_endpoint,
    create_endpoint,
    delete_endpoint,
    find_callback,
    find_endpoint,
    list_endpoints,
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


@router.get("/v1/webhook_event_types")
async def show_event_types(_: PrincipalDep) -> Response:
    """List the event types."""
    return json_response({"object": "list", "data": list(EVENT_TYPES)})


@router.post("/v1/webhook_endpoints")
async def create(
    request: Request, principal: PrincipalDep, services: ServicesDep, webhooks: WebhookServicesDep
) -> Response:
    """Create an endpoint. Only this response and its replays contain the secret."""
    context, sealer = idempotency_of_request(request, principal, services), webhooks.sealer
    body = await json_body(request, NewEndpointBody, services.settings)
    new = EndpointChange(body.name, body.url, body.event_types)
    endpoints_max = webhooks.settings.endpoints_max

    def work(connection: sa.Connection) -> StoredAnswer:
        row, secret = create_endpoint(
            connection, principal.tenant_id, new, sealer, endpoints_max=endpoints_max
        )
        record_audit_entry(
            connection, principal, Action.ENDPOINT_CREATED, public_id(ENDPOINT, row.id)
        )
        return encrypted_answer(endpoint_object(row), secret, sealer, principal.tenant_id)

    answer, is_replay = await find_saved_answer(context, services, body_sha256(request)), True
    if answer is None:
        await webhooks.validate_url(principal.tenant_id, body.url, param="url")
        answer, is_replay = await execute_once(context, services, body_sha256(request), work)
    return saved_response(
        decrypted_answer(answer, sealer, principal.tenant_id), is_replay=is_replay
    )


@router.get("/v1/webhook_endpoints")
async def show_list(
    principal: PrincipalDep,
    services: ServicesDep,
    limit: Limit = LIMIT_DEFAULT,
    after: str | None = None,
) -> Response:
    """List endpoints, newest first."""
    cursor = PageCursor(limit=limit, after=parse_after(ENDPOINT, after))
    page = await services.database.run_for_tenant(
        principal.tenant_id, list_endpoints, principal.tenant_id, cursor
    )
    return json_response(page_object(page, endpoint_object))


@router.get("/v1/webhook_endpoints/{endpoint_id}")
async def show(endpoint_id: str, principal: PrincipalDep, services: ServicesDep) -> Response:
    """Show an endpoint."""
    parsed_id = parse_public_id(ENDPOINT, endpoint_id)
    row = await services.database.run_for_tenant(
        principal.tenant_id, find_endpoint, principal.tenant_id, parsed_id
    )
    return json_response(endpoint_object(row))


@router.get("/v1/batches/{batch_id}/callback")
async def show_callback(batch_id: str, principal: PrincipalDep, services: ServicesDep) -> Response:
    """Show the callback of a job as an endpoint, whose id the other routes accept."""
    parsed_id = parse_public_id(JOB, batch_id)
    row = await services.database.run_for_tenant(
        principal.tenant_id, find_callback, principal.tenant_id, parsed_id
    )
    return json_response(endpoint_object(row))


@router.post("/v1/webhook_endpoints/{endpoint_id}")
async def change(
    endpoint_id: str,
    request: Request,
    principal: PrincipalDep,
    services: ServicesDep,
    webhooks: WebhookServicesDep,
) -> Response:
    """Change an endpoint; omitted fields stay the same."""
    context = idempotency_of_request(request, principal, services).for_client_key_only()
    body = await json_body(request, EndpointChangeBody, services.settings)
    parsed_id = parse_public_id(ENDPOINT, endpoint_id)
    changed = EndpointChange(body.name, body.url, body.event_types, body.enabled)
    details = {"fields": [name for name, value in asdict(changed).items() if value is not None]}

    def work(connection: sa.Connection) -> StoredAnswer:
        row = change_endpoint(connection, principal.tenant_id, parsed_id, changed)
        record_audit_entry(
            connection, principal, Action.ENDPOINT_CHANGED, public_id(ENDPOINT, row.id), details
        )
        return StoredAnswer(200, msgspec.json.encode(endpoint_object(row)))

    answer, is_replay = await find_saved_answer(context, services, body_sha256(request)), True
    if answer is None:
        if body.url is not None:
            await webhooks.validate_url(principal.tenant_id, body.url, param="url")
        answer, is_replay = await execute_once(context, services, body_sha256(request), work)
    return saved_response(answer, is_replay=is_replay)


@router.delete("/v1/webhook_endpoints/{endpoint_id}")
async def delete(endpoint_id: str, principal: PrincipalDep, services: ServicesDep) -> Response:
    """Delete an endpoint with its history."""
    parsed_id = parse_public_id(ENDPOINT, endpoint_id)

    def work(connection: sa.Connection) -> None:
        delete_endpoint(connection, principal.tenant_id, parsed_id)
        record_audit_entry(connection, principal, Action.ENDPOINT_DELETED, endpoint_id)

    await services.database.run_for_tenant(principal.tenant_id, work)
    deleted = {"id": endpoint_id, "object": "webhook_endpoint.deleted", "deleted": True}
    return json_response(deleted)
