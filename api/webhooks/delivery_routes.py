"""Routes of webhook deliveries: test, history, replay."""

import asyncio
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

import msgspec
import sqlalchemy as sa
from fastapi import APIRouter, Response

from api.auth.authentication import TenantRequest, TenantRequestDep
from api.http.errors import ApiError
from api.http.paging import PageDep
from api.http.responses import json_response
from api.idempotent_requests import IdempotentRequestDep
from api.resources import page_object, seconds
from core.ids import EVENT, JOB, parse_public_id, public_id
from jobs.errors import InvalidFieldError
from results.webhooks.delivery.delivery_history import (
    DeliveryHistory,
    Replay,
    create_test_delivery,
    find_attempt,
    list_deliveries,
    replay_deliveries,
)
from results.webhooks.endpoints.endpoints import ENDPOINT, check_event_types

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
async def show_deliveries(endpoint_id: str, request: TenantRequestDep, page: PageDep) -> Response:
    """List an endpoint's deliveries with all attempts, newest first."""
    histories, has_more = await request.run(
        list_deliveries, parse_public_id(ENDPOINT, endpoint_id), page.cursor(EVENT)
    )
    return json_response(page_object(histories, has_more, delivery_object))


@router.post("/v1/webhook_endpoints/{endpoint_id}/test")
async def test(endpoint_id: str, request: IdempotentRequestDep) -> Response:
    """Send a sample event once, through the webhooks role, and return the outcome."""
    body = await request.json_body(TestBody)
    check_event_types([body.event_type], param="event_type")
    parsed_endpoint_id = parse_public_id(ENDPOINT, endpoint_id)

    async def finish(message_id: UUID) -> object:
        assert parsed_endpoint_id is not None
        attempt = await _first_attempt(request, message_id, parsed_endpoint_id)
        if attempt is None or attempt.status_code is None:
            reason = "no answer in time" if attempt is None else attempt.error_code
            raise ApiError(
                400, f"The endpoint could not be reached: {reason}.", code="webhook_test_failed"
            )
        return {
            "object": "webhook_endpoint.test",
            "webhook_endpoint_id": endpoint_id,
            "event_type": body.event_type,
            "status_code": attempt.status_code,
            "success": True,
        }

    event = (request.tenant_id, parsed_endpoint_id, body.event_type)
    return await request.answer_once_holding_key(lambda c: create_test_delivery(c, *event), finish)


@router.post("/v1/webhook_endpoints/{endpoint_id}/replay")
async def send_again(endpoint_id: str, request: IdempotentRequestDep) -> Response:
    """Send one message again, or those of a time span, with the same ids."""
    body = await request.json_body(ReplayBody)
    if body.message_id is None and body.since is None:
        raise InvalidFieldError("Send message_id or since.", param="since")
    parsed_endpoint_id = parse_public_id(ENDPOINT, endpoint_id)
    replay = Replay(
        message_id=_message_id(body.message_id, "message_id"),
        since=_timestamp(body.since, "since"),
        until=_timestamp(body.until, "until"),
        failed_only=body.failed_only,
        after=_message_id(body.after, "after"),
    )

    def work(connection: sa.Connection) -> object:
        replayed = replay_deliveries(connection, request.tenant_id, parsed_endpoint_id, replay)
        last_id = replayed.last_id
        return {
            "object": "webhook_endpoint.replay",
            "webhook_endpoint_id": endpoint_id,
            "replayed": replayed.count,
            "last_id": public_id(EVENT, last_id) if last_id is not None else None,
            "has_more": last_id is not None,
        }

    return await request.answer_once(work)


def delivery_object(history: DeliveryHistory) -> dict[str, object]:
    """Return a delivery with its attempts."""
    row = history.delivery
    return {
        "id": public_id(EVENT, row.message_id),
        "object": "webhook_endpoint.delivery",
        "event_type": row.event_type,
        "batch_id": None if row.job_id is None else public_id(JOB, row.job_id),
        "status": row.state,
        "is_test": row.is_test,
        "created_at": seconds(row.created_at),
        "next_try_at": seconds(row.next_try_at) if row.state == "pending" else None,
        "ended_at": seconds(row.ended_at),
        "attempts": [
            {
                "number": attempt.number,
                "started_at": seconds(attempt.started_at),
                "duration_ms": attempt.duration_ms,
                "status_code": attempt.status_code,
                "error_code": attempt.error_code,
            }
            for attempt in history.attempts
        ],
    }


async def _first_attempt(
    request: TenantRequest, message_id: UUID, endpoint_id: UUID
) -> sa.Row[tuple[object, ...]] | None:
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + _TEST_S_MAX
    while loop.time() < deadline_s:
        attempt = await request.services.database.run_for_tenant(
            request.tenant_id, find_attempt, message_id, endpoint_id
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
        raise InvalidFieldError("The value is not an event id.", param=param)
    return message_id


def _timestamp(seconds: int | None, param: str) -> datetime | None:
    if seconds is None:
        return None
    if not 0 <= seconds <= _TIMESTAMP_MAX:
        raise InvalidFieldError("The value must be seconds since 1970.", param=param)
    return datetime.fromtimestamp(seconds, UTC)
