"""Routes of webhook deliveries: test, history, replay."""

import asyncio
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

import msgspec
import sqlalchemy as sa
from fastapi import APIRouter, Request, Response

from api.auth.authentication import PrincipalDep, ServicesDep
from api.http.errors import ApiError
from api.http.paging import LIMIT_DEFAULT, Limit, parse_after
from api.http.request_bodies import body_sha256, json_body
from api.http.responses import json_response
from api.idempotency.idempotent_requests import (
    execute_once,
    execute_once_holding_key,
    idempotency_of_request,
    saved_response,
)
from api.runtime.api_services import Services
from api.webhooks.webhook_objects import delivery_object
from core.ids import EVENT, parse_public_id, public_id
from jobs.store.idempotency import StoredAnswer
from jobs.store.keyset_pages import PageCursor
from results.webhooks.delivery.delivery_history import (
    Replay,
    create_test_delivery,
    find_attempt,
    list_deliveries,
    replay_deliveries,
)
from results.webhooks.endpoints.endpoints import ENDPOINT, check_event_types
from tenancy.api_keys import Principal

router = APIRouter()

_TEST_S_MAX: Final = 8.0  # every request ends within 10 s
_TEST_POLL_S: Final = 0.1
_TIMESTAMP_MAX: Final = 253_402_300_799  # the year 9999


class TestBody(msgspec.Struct):
    """The type of the test event."""

    event_type: str


class ReplayBody(msgspec.Struct):
    """The messages to send again: one, or all of a time span in seconds since the epoch.

    A long span is replayed in several requests: the next one sends `last_id` of the response as
    `after`.
    """

    message_id: str | None = None
    since: int | None = None
    until: int | None = None
    failed_only: bool = False
    after: str | None = None


@router.get("/v1/webhook_endpoints/{endpoint_id}/deliveries")
async def show_deliveries(
    endpoint_id: str,
    principal: PrincipalDep,
    services: ServicesDep,
    limit: Limit = LIMIT_DEFAULT,
    after: str | None = None,
) -> Response:
    """List an endpoint's deliveries with all attempts, newest first."""
    parsed_endpoint_id = parse_public_id(ENDPOINT, endpoint_id)
    cursor = PageCursor(limit=limit, after=parse_after(EVENT, after))
    histories, has_more = await services.database.run_for_tenant(
        principal.tenant_id, list_deliveries, principal.tenant_id, parsed_endpoint_id, cursor
    )
    ids = [public_id(EVENT, history.delivery.message_id) for history in histories]
    return json_response(
        {
            "object": "list",
            "data": [delivery_object(history) for history in histories],
            "first_id": ids[0] if ids else None,
            "last_id": ids[-1] if ids else None,
            "has_more": has_more,
        }
    )


@router.post("/v1/webhook_endpoints/{endpoint_id}/test")
async def test(
    endpoint_id: str, request: Request, principal: PrincipalDep, services: ServicesDep
) -> Response:
    """Send a sample event once, through the webhooks role, and return the outcome."""
    context = idempotency_of_request(request, principal, services)
    body = await json_body(request, TestBody, services.settings)
    check_event_types([body.event_type], param="event_type")
    parsed_endpoint_id = parse_public_id(ENDPOINT, endpoint_id)

    def insert_test(connection: sa.Connection) -> UUID:
        return create_test_delivery(
            connection, principal.tenant_id, parsed_endpoint_id, body.event_type
        )

    async def finish(message_id: UUID) -> StoredAnswer:
        assert parsed_endpoint_id is not None
        attempt = await _first_attempt(services, principal, message_id, parsed_endpoint_id)
        if attempt is None or attempt.status_code is None:
            reason = "no answer in time" if attempt is None else attempt.error_code
            raise ApiError(
                400, f"The endpoint could not be reached: {reason}.", code="webhook_test_failed"
            )
        outcome = {
            "object": "webhook_endpoint.test",
            "webhook_endpoint_id": endpoint_id,
            "event_type": body.event_type,
            "status_code": attempt.status_code,
            "success": True,
        }
        return StoredAnswer(200, msgspec.json.encode(outcome))

    digest = body_sha256(request)
    answer, is_replay = await execute_once_holding_key(
        context, services, digest, insert_test, finish
    )
    return saved_response(answer, is_replay=is_replay)


@router.post("/v1/webhook_endpoints/{endpoint_id}/replay")
async def send_again(
    endpoint_id: str, request: Request, principal: PrincipalDep, services: ServicesDep
) -> Response:
    """Send one message again, or those of a time span, with the same ids."""
    context = idempotency_of_request(request, principal, services)
    body = await json_body(request, ReplayBody, services.settings)
    if body.message_id is None and body.since is None:
        raise ApiError(400, "Send message_id or since.", code="invalid_value", param="since")
    endpoint = parse_public_id(ENDPOINT, endpoint_id)
    parsed_endpoint_id = Replay(
        message_id=_message_id(body.message_id, "message_id"),
        since=_timestamp(body.since, "since"),
        until=_timestamp(body.until, "until"),
        failed_only=body.failed_only,
        after=_message_id(body.after, "after"),
    )

    def work(connection: sa.Connection) -> StoredAnswer:
        replayed = replay_deliveries(connection, principal.tenant_id, endpoint, parsed_endpoint_id)
        last_id = replayed.last_id
        summary = {
            "object": "webhook_endpoint.replay",
            "webhook_endpoint_id": endpoint_id,
            "replayed": replayed.count,
            "last_id": public_id(EVENT, last_id) if last_id is not None else None,
            "has_more": last_id is not None,
        }
        return StoredAnswer(200, msgspec.json.encode(summary))

    answer, is_replay = await execute_once(context, services, body_sha256(request), work)
    return saved_response(answer, is_replay=is_replay)


async def _first_attempt(
    services: Services, principal: Principal, message_id: UUID, endpoint_id: UUID
) -> sa.Row[tuple[object, ...]] | None:
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + _TEST_S_MAX
    while loop.time() < deadline_s:
        attempt = await services.database.run_for_tenant(
            principal.tenant_id, find_attempt, message_id, endpoint_id
        )
        if attempt is not None:
            return attempt
        await asyncio.sleep(_TEST_POLL_S)
    return None


def _message_id(text: str | None, param: str) -> UUID | None:
    if text is None:
        return None
    message_id = parse_public_id(EVENT, text)
    if message_id is None:
        raise ApiError(400, "The value is not an event id.", code="invalid_value", param=param)
    return message_id


def _timestamp(seconds: int | None, param: str) -> datetime | None:
    if seconds is None:
        return None
    if not 0 <= seconds <= _TIMESTAMP_MAX:
        raise ApiError(
            400, "The value must be seconds since 1970.", code="invalid_value", param=param
        )
    return datetime.fromtimestamp(seconds, UTC)
