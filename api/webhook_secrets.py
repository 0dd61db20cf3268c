"""Routes that replace the secrets webhooks are signed with; a new one is shown once."""

from typing import Any

import msgspec
import sqlalchemy as sa
from fastapi import APIRouter, Request, Response

from api.acts import record
from api.answers import json_answer
from api.bodies import json_body
from api.principals import PrincipalOf, ServicesOf
from api.webhook_objects import endpoint_object
from api.webhook_services import WebhooksOf
from core.ids import parse_public_id
from results.webhooks.callbacks import rotate_callback_secret
from results.webhooks.endpoints import ENDPOINT, rotate_secret
from results.webhooks.signatures import secret_hint, secret_text
from tenancy.audit_log import Action

router = APIRouter()


class RotateBody(msgspec.Struct):
    """How a secret is replaced."""

    keep_old_secret_active_for_24_hours: bool = False


@router.post("/v1/webhook_endpoints/{endpoint_id}/rotate_secret")
async def rotate(
    endpoint_id: str,
    request: Request,
    principal: PrincipalOf,
    services: ServicesOf,
    webhooks: WebhooksOf,
) -> Response:
    """Give an endpoint a new secret; it is shown here and never again."""
    sealer = webhooks.sealer
    body = await json_body(request, RotateBody, services.settings)
    keep_old = body.keep_old_secret_active_for_24_hours
    wanted = parse_public_id(ENDPOINT, endpoint_id)

    def work(connection: sa.Connection) -> tuple[sa.Row[Any], bytes]:
        found = rotate_secret(connection, principal.tenant_id, wanted, sealer, keep_old=keep_old)
        record(connection, principal, Action.SECRET_ROTATED, endpoint_id, {"keep_old": keep_old})
        return found

    row, secret = await services.database.run_for(principal.tenant_id, work)
    return json_answer(endpoint_object(row, secret))


@router.post("/v1/webhook_callback_secret/rotate")
async def rotate_for_callbacks(
    request: Request, principal: PrincipalOf, services: ServicesOf, webhooks: WebhooksOf
) -> Response:
    """Give the callbacks of all jobs of this tenant a new secret; it is shown here alone."""
    sealer = webhooks.sealer
    body = await json_body(request, RotateBody, services.settings)
    keep_old = body.keep_old_secret_active_for_24_hours

    def work(connection: sa.Connection) -> bytes:
        secret = rotate_callback_secret(connection, principal.tenant_id, sealer, keep_old=keep_old)
        told = {"keep_old": keep_old}
        record(connection, principal, Action.SECRET_ROTATED, "callbacks", told)
        return secret

    secret = await services.database.run_for(principal.tenant_id, work)
    return json_answer(
        {
            "object": "webhook_callback_secret",
            "signing_secret": secret_text(secret),
            "signing_secret_hint": secret_hint(secret),
        }
    )
