"""Routes that rotate signing secrets; only the response contains the new one."""

import msgspec
import sqlalchemy as sa
from fastapi import APIRouter, Request, Response

from api.auth.audit_entries import record_audit_entry
from api.auth.principals import PrincipalDep, ServicesDep
from api.http.request_bodies import body_sha256, json_body
from api.idempotency.idempotent_requests import execute_once, idempotency_of_request, saved_response
from api.webhooks.secret_answers import decrypted_answer, encrypted_answer
from api.webhooks.webhook_objects import endpoint_object
from api.webhooks.webhook_services import WebhookServicesDep
from core.ids import parse_public_id
from jobs.store.idempotency import StoredAnswer
from results.webhooks.delivery.signatures import secret_hint
from results.webhooks.endpoints.callbacks import rotate_callback_secret
from results.webhooks.endpoints.endpoints import ENDPOINT, rotate_secret
from tenancy.audit_log import Action

router = APIRouter()


class RotateBody(msgspec.Struct):
    """How long the old secret stays valid."""

    keep_old_secret_active_for_24_hours: bool = False


@router.post("/v1/webhook_endpoints/{endpoint_id}/rotate_secret")
async def rotate(
    endpoint_id: str,
    request: Request,
    principal: PrincipalDep,
    services: ServicesDep,
    webhooks: WebhookServicesDep,
) -> Response:
    """Rotate the secret of an endpoint."""
    context, sealer = idempotency_of_request(request, principal, services), webhooks.sealer
    body = await json_body(request, RotateBody, services.settings)
    keep_old = body.keep_old_secret_active_for_24_hours
    parsed_id = parse_public_id(ENDPOINT, endpoint_id)

    def work(connection: sa.Connection) -> StoredAnswer:
        tenant_id = principal.tenant_id
        row, secret = rotate_secret(connection, tenant_id, parsed_id, sealer, keep_old=keep_old)
        record_audit_entry(
            connection, principal, Action.SECRET_ROTATED, endpoint_id, {"keep_old": keep_old}
        )
        return encrypted_answer(endpoint_object(row), secret, sealer, tenant_id)

    answer, is_replay = await execute_once(context, services, body_sha256(request), work)
    return saved_response(
        decrypted_answer(answer, sealer, principal.tenant_id), is_replay=is_replay
    )


@router.post("/v1/webhook_callback_secret/rotate")
async def rotate_for_callbacks(
    request: Request, principal: PrincipalDep, services: ServicesDep, webhooks: WebhookServicesDep
) -> Response:
    """Rotate the secret for the callbacks of all jobs of the tenant."""
    context, sealer = idempotency_of_request(request, principal, services), webhooks.sealer
    body = await json_body(request, RotateBody, services.settings)
    keep_old = body.keep_old_secret_active_for_24_hours

    def work(connection: sa.Connection) -> StoredAnswer:
        secret = rotate_callback_secret(connection, principal.tenant_id, sealer, keep_old=keep_old)
        details = {"keep_old": keep_old}
        record_audit_entry(connection, principal, Action.SECRET_ROTATED, "callbacks", details)
        shown = {"object": "webhook_callback_secret", "signing_secret_hint": secret_hint(secret)}
        return encrypted_answer(shown, secret, sealer, principal.tenant_id)

    answer, is_replay = await execute_once(context, services, body_sha256(request), work)
    return saved_response(
        decrypted_answer(answer, sealer, principal.tenant_id), is_replay=is_replay
    )
