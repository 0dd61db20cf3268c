"""Routes of webhooks: endpoints as OpenAI's clients call them, and their history and replay."""

import asyncio
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, Final
from uuid import UUID

import msgspec
import sqlalchemy as sa
from fastapi import APIRouter, Query, Request, Response

from api.acts import record
from api.answers import ApiError, json_answer
from api.bodies import json_body
from api.objects import page_object
from api.paging import parse_after
from api.principals import PrincipalOf, ServicesOf
from api.services import Services
from api.webhook_objects import delivery_object, endpoint_object
from api.webhook_services import WebhooksOf
from core.ids import EVENT, JOB, parse_public_id, public_id
from core.limits import LIST_LIMIT_MAX
from jobs.pages import Cursor
from results.webhooks.callbacks import rotate_callback_secret
from results.webhooks.endpoints import (
    ENDPOINT,
    EndpointChange,
    change_endpoint,
    check_event_types,
    create_endpoint,
    delete_endpoint,
    find_callback,
    find_endpoint,
    list_endpoints,
    rotate_secret,
)
from results.webhooks.events import EVENT_TYPES
from results.webhooks.history import Replay, begin_test, find_attempt, list_deliveries, replay
from results.webhooks.signatures import secret_hint, secret_text
from tenancy.api_keys import Principal
from tenancy.audit_log import Action

router = APIRouter()

_LIMIT_DEFAULT: Final = 20
_TEST_S_MAX: Final = 8.0  # every request of ours ends within 10 s
_TEST_LOOK_S: Final = 0.1
_MOMENT_S_MAX: Final = 253_402_300_799  # the year 9999

Limit = Annotated[int, Query(ge=1, le=LIST_LIMIT_MAX)]


class NewEndpointBody(msgspec.Struct):
    """What a client sends to create an endpoint."""

    name: str
    url: str
    event_types: list[str]


class EndpointChangeBody(msgspec.Struct):
    """What a client changes; `enabled` is ours."""

    name: str | None = None
    url: str | None = None
    event_types: list[str] | None = None
    enabled: bool | None = None


class RotateBody(msgspec.Struct):
    """How a secret is replaced."""

    keep_old_secret_active_for_24_hours: bool = False


class TestBody(msgspec.Struct):
    """What is sent as a trial."""

    event_type: str


class ReplayBody(msgspec.Struct):
    """What is sent again: one message, or all of a span in seconds since the epoch."""

    message_id: str | None = None
    since: int | None = None
    until: int | None = None
    failed_only: bool = False


@router.get("/v1/webhook_event_types")
async def show_event_types(_: PrincipalOf) -> Response:
    """List what can be heard of."""
    return json_answer({"object": "list", "data": list(EVENT_TYPES)})


@router.post("/v1/webhook_endpoints")
async def create(
    request: Request, principal: PrincipalOf, services: ServicesOf, webhooks: WebhooksOf
) -> Response:
    """Add an endpoint; its secret is shown here and never again."""
    sealer = webhooks.sealer
    body = await json_body(request, NewEndpointBody, services.settings)
    new = EndpointChange(body.name, body.url, body.event_types)
    await webhooks.checked_url(body.url, param="url")
    most = webhooks.settings.endpoints_max

    def work(connection: sa.Connection) -> tuple[sa.Row[Any], bytes]:
        row, secret = create_endpoint(
            connection, principal.tenant_id, new, sealer, endpoints_max=most
        )
        record(connection, principal, Action.ENDPOINT_CREATED, public_id(ENDPOINT, row.id))
        return row, secret

    row, secret = await services.database.run_for(principal.tenant_id, work)
    return json_answer(endpoint_object(row, secret))


@router.get("/v1/webhook_endpoints")
async def show_list(
    principal: PrincipalOf,
    services: ServicesOf,
    limit: Limit = _LIMIT_DEFAULT,
    after: str | None = None,
) -> Response:
    """List endpoints, newest first."""
    cursor = Cursor(limit=limit, after=parse_after(ENDPOINT, after))
    page = await services.database.run_for(
        principal.tenant_id, list_endpoints, principal.tenant_id, cursor
    )
    return json_answer(page_object(page, endpoint_object))


@router.get("/v1/webhook_endpoints/{endpoint_id}")
async def show(endpoint_id: str, principal: PrincipalOf, services: ServicesOf) -> Response:
    """Show one endpoint."""
    wanted = parse_public_id(ENDPOINT, endpoint_id)
    row = await services.database.run_for(
        principal.tenant_id, find_endpoint, principal.tenant_id, wanted
    )
    return json_answer(endpoint_object(row))


@router.get("/v1/batches/{batch_id}/callback")
async def show_callback(batch_id: str, principal: PrincipalOf, services: ServicesOf) -> Response:
    """Show a job's callback as an endpoint, whose id the other routes take."""
    wanted = parse_public_id(JOB, batch_id)
    row = await services.database.run_for(
        principal.tenant_id, find_callback, principal.tenant_id, wanted
    )
    return json_answer(endpoint_object(row))


@router.post("/v1/webhook_endpoints/{endpoint_id}")
async def change(
    endpoint_id: str,
    request: Request,
    principal: PrincipalOf,
    services: ServicesOf,
    webhooks: WebhooksOf,
) -> Response:
    """Change an endpoint; what is left out stays."""
    body = await json_body(request, EndpointChangeBody, services.settings)
    wanted = parse_public_id(ENDPOINT, endpoint_id)
    changed = EndpointChange(body.name, body.url, body.event_types, body.enabled)
    if body.url is not None:
        await webhooks.checked_url(body.url, param="url")
    told = {"fields": [name for name, value in asdict(changed).items() if value is not None]}

    def work(connection: sa.Connection) -> sa.Row[Any]:
        row = change_endpoint(connection, principal.tenant_id, wanted, changed)
        record(connection, principal, Action.ENDPOINT_CHANGED, public_id(ENDPOINT, row.id), told)
        return row

    return json_answer(endpoint_object(await services.database.run_for(principal.tenant_id, work)))


@router.delete("/v1/webhook_endpoints/{endpoint_id}")
async def delete(endpoint_id: str, principal: PrincipalOf, services: ServicesOf) -> Response:
    """Remove an endpoint with its history."""
    wanted = parse_public_id(ENDPOINT, endpoint_id)

    def work(connection: sa.Connection) -> None:
        delete_endpoint(connection, principal.tenant_id, wanted)
        record(connection, principal, Action.ENDPOINT_DELETED, endpoint_id)

    await services.database.run_for(principal.tenant_id, work)
    deleted = {"id": endpoint_id, "object": "webhook_endpoint.deleted", "deleted": True}
    return json_answer(deleted)


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


@router.post("/v1/webhook_endpoints/{endpoint_id}/test")
async def test(
    endpoint_id: str, request: Request, principal: PrincipalOf, services: ServicesOf
) -> Response:
    """Send a sample event once, by the role that sends all others, and tell what came back."""
    body = await json_body(request, TestBody, services.settings)
    check_event_types([body.event_type], param="event_type")
    wanted = parse_public_id(ENDPOINT, endpoint_id)
    message_id = await services.database.run_for(
        principal.tenant_id, begin_test, principal.tenant_id, wanted, body.event_type
    )
    assert wanted is not None
    attempt = await _first_attempt(services, principal, message_id, wanted)
    if attempt is None or attempt.status_code is None:
        reason = "no answer in time" if attempt is None else attempt.error_code
        raise ApiError(
            400, f"The endpoint could not be reached: {reason}.", code="webhook_test_failed"
        )
    return json_answer(
        {
            "object": "webhook_endpoint.test",
            "webhook_endpoint_id": endpoint_id,
            "event_type": body.event_type,
            "status_code": attempt.status_code,
            "success": True,
        }
    )


@router.get("/v1/webhook_endpoints/{endpoint_id}/deliveries")
async def show_deliveries(
    endpoint_id: str,
    principal: PrincipalOf,
    services: ServicesOf,
    limit: Limit = _LIMIT_DEFAULT,
    after: str | None = None,
) -> Response:
    """List an endpoint's deliveries with every try, newest first."""
    wanted = parse_public_id(ENDPOINT, endpoint_id)
    cursor = Cursor(limit=limit, after=parse_after(EVENT, after))
    found, has_more = await services.database.run_for(
        principal.tenant_id, list_deliveries, principal.tenant_id, wanted, cursor
    )
    ids = [public_id(EVENT, history.delivery.message_id) for history in found]
    return json_answer(
        {
            "object": "list",
            "data": [delivery_object(history) for history in found],
            "first_id": ids[0] if ids else None,
            "last_id": ids[-1] if ids else None,
            "has_more": has_more,
        }
    )


@router.post("/v1/webhook_endpoints/{endpoint_id}/replay")
async def send_again(
    endpoint_id: str, request: Request, principal: PrincipalOf, services: ServicesOf
) -> Response:
    """Send one message again, or those of a span, with the same ids."""
    body = await json_body(request, ReplayBody, services.settings)
    if body.message_id is None and body.since is None:
        raise ApiError(400, "Give message_id or since.", code="invalid_value", param="since")
    count = await services.database.run_for(
        principal.tenant_id,
        replay,
        principal.tenant_id,
        parse_public_id(ENDPOINT, endpoint_id),
        Replay(
            message_id=_message_id(body.message_id),
            since=_moment(body.since, "since"),
            until=_moment(body.until, "until"),
            failed_only=body.failed_only,
        ),
    )
    answer = {
        "object": "webhook_endpoint.replay",
        "webhook_endpoint_id": endpoint_id,
        "replayed": count,
    }
    return json_answer(answer)


async def _first_attempt(
    services: Services, principal: Principal, message_id: UUID, endpoint_id: UUID
) -> sa.Row[tuple[object, ...]] | None:
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + _TEST_S_MAX
    while loop.time() < deadline_s:
        attempt = await services.database.run_for(
            principal.tenant_id, find_attempt, message_id, endpoint_id
        )
        if attempt is not None:
            return attempt
        await asyncio.sleep(_TEST_LOOK_S)
    return None


def _message_id(text: str | None) -> UUID | None:
    if text is None:
        return None
    message_id = parse_public_id(EVENT, text)
    if message_id is None:
        raise ApiError(400, "This is no event's id.", code="invalid_value", param="message_id")
    return message_id


def _moment(seconds: int | None, param: str) -> datetime | None:
    if seconds is None:
        return None
    if not 0 <= seconds <= _MOMENT_S_MAX:
        raise ApiError(400, "Give seconds since 1970.", code="invalid_value", param=param)
    return datetime.fromtimestamp(seconds, UTC)
