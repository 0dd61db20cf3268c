"""Routes that rotate signing secrets, and the answers that contain one."""

import base64
from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

import msgspec
import sqlalchemy as sa
from fastapi import APIRouter, Request, Response

from api.auth.audit_entries import record_audit_entry
from api.auth.authentication import PrincipalDep, ServicesDep
from api.http.errors import ApiError
from api.http.request_bodies import body_sha256, json_body
from api.idempotency.idempotent_requests import execute_once, idempotency_of_request, saved_response
from api.webhooks.webhook_objects import endpoint_object
from api.webhooks.webhook_services import WebhookServicesDep
from core.ids import parse_public_id
from jobs.store.idempotency import StoredAnswer
from results.webhooks.delivery.signatures import secret_hint, secret_text
from results.webhooks.endpoints.callbacks import rotate_callback_secret
from results.webhooks.endpoints.endpoints import ENDPOINT, rotate_secret
from results.webhooks.endpoints.secret_encryption import SecretCipher, SecretUnreadableError
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


def encrypted_answer(
    shown: Mapping[str, object], secret: bytes, sealer: SecretCipher, tenant_id: UUID
) -> StoredAnswer:
    """Return `shown` with its secret encrypted: no stored data may contain one in plain text."""
    encrypted = base64.b64encode(sealer.encrypt(secret, tenant_id)).decode()
    return StoredAnswer(200, msgspec.json.encode({**shown, "signing_secret": encrypted}))


def decrypted_answer(answer: StoredAnswer, sealer: SecretCipher, tenant_id: UUID) -> StoredAnswer:
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
