"""History of deliveries for their owners: attempts, replays, and test deliveries."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from core.ids import JOB, new_uuid, public_id
from jobs.errors import InvalidFieldError, InvalidRequestError
from jobs.store.keyset_pages import PageCursor, position_of, unknown_cursor_error
from results.webhooks.delivery.claiming import PENDING
from results.webhooks.endpoints.endpoints import find_endpoint
from results.webhooks.events.messages import event_body
from results.webhooks.tables import webhook_attempts, webhook_deliveries, webhook_messages

REPLAYS_MAX: Final = 10_000
_SAMPLE_JOB: Final = UUID(int=0)
_ORDER: Final = (webhook_deliveries.c.created_at, webhook_deliveries.c.message_id)
_POSITION: Final = sa.tuple_(*_ORDER)


class EndpointDisabledError(InvalidRequestError):
    """The webhook endpoint is disabled. Enable it first."""

    code = "webhook_endpoint_disabled"


@dataclass(frozen=True, slots=True)
class DeliveryHistory:
    """A delivery with its attempts, oldest first."""

    delivery: sa.Row[Any]
    attempts: list[sa.Row[Any]]


@dataclass(frozen=True, slots=True)
class Replay:
    """Which messages to send again: one, or all created in a time range."""

    message_id: UUID | None = None
    since: datetime | None = None
    until: datetime | None = None
    failed_only: bool = False
    after: UUID | None = None  # continues a time range after this message


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """How many messages are sent again, and the last of them if more may follow."""

    count: int
    last_id: UUID | None = None


def list_deliveries(
    connection: sa.Connection, tenant_id: UUID, endpoint_id: UUID | None, cursor: PageCursor
) -> tuple[list[DeliveryHistory], bool]:
    """Return a page of an endpoint's deliveries, newest first, and whether more follow.

    Raises EndpointNotFoundError, InvalidFieldError.
    """
    endpoint = find_endpoint(connection, tenant_id, endpoint_id)
    table = webhook_deliveries
    query = (
        sa.select(table, webhook_messages.c.event_type, webhook_messages.c.job_id)
        .join(webhook_messages, webhook_messages.c.id == table.c.message_id)
        .where(table.c.endpoint_id == endpoint.id)
        .order_by(table.c.created_at.desc(), table.c.message_id.desc())
        .limit(cursor.limit + 1)
    )
    if cursor.after is not None:
        query = query.where(_position_of(connection, endpoint.id, cursor.after) > _POSITION)
    rows = connection.execute(query).all()
    page = rows[: cursor.limit]
    attempts: dict[UUID, list[sa.Row[Any]]] = {row.message_id: [] for row in page}
    for attempt in connection.execute(
        sa.select(webhook_attempts)
        .where(
            webhook_attempts.c.endpoint_id == endpoint.id,
            webhook_attempts.c.message_id.in_(list(attempts)),
        )
        .order_by(webhook_attempts.c.number)
    ):
        attempts[attempt.message_id].append(attempt)
    return [DeliveryHistory(row, attempts[row.message_id]) for row in page], len(rows) > len(page)


def _position_of(connection: sa.Connection, endpoint_id: UUID, message_id: UUID) -> sa.Tuple:
    """Return the position of a message in its endpoint's order. Raises InvalidFieldError."""
    columns = webhook_deliveries.c
    query = sa.select(*_ORDER).where(
        columns.endpoint_id == endpoint_id, columns.message_id == message_id
    )
    row = connection.execute(query).one_or_none()
    if row is None:
        raise unknown_cursor_error()
    return position_of(row, *_ORDER)


def replay_deliveries(
    connection: sa.Connection, tenant_id: UUID, endpoint_id: UUID | None, selection: Replay
) -> ReplayResult:
    """Send up to 10,000 messages again, oldest first, with their ids and a new retry schedule.

    Deliveries that wait for an attempt get it now. Raises EndpointNotFoundError,
    EndpointDisabledError, and InvalidFieldError when `message_id` or `after` was never sent here.
    """
    endpoint = find_endpoint(connection, tenant_id, endpoint_id)
    if endpoint.disabled_at is not None:
        raise EndpointDisabledError
    table = webhook_deliveries
    if selection.message_id is not None:
        _require_sent(connection, endpoint.id, selection.message_id)
    query = sa.select(table.c.message_id).where(
        table.c.endpoint_id == endpoint.id,
        table.c.is_test.is_(False),
        # A running attempt is not disturbed.
        sa.or_(table.c.claimed_by.is_(None), table.c.next_try_at <= sa.func.now()),
    )
    if selection.message_id is not None:
        query = query.where(table.c.message_id == selection.message_id)
    if selection.since is not None:
        query = query.where(table.c.created_at >= selection.since)
    if selection.until is not None:
        query = query.where(table.c.created_at < selection.until)
    if selection.failed_only:
        query = query.where(table.c.state != "delivered")
    if selection.after is not None:
        query = query.where(_position_of(connection, endpoint.id, selection.after) < _POSITION)
    chosen = query.order_by(table.c.created_at, table.c.message_id).limit(REPLAYS_MAX)
    locked = chosen.with_for_update(skip_locked=True)
    replayed = connection.execute(
        sa.update(table)
        .where(table.c.endpoint_id == endpoint.id)
        # An array is computed once: a join could select again and skip the rows it has locked.
        .where(table.c.message_id == sa.any_(sa.func.array(locked.scalar_subquery())))
        .values(
            state=PENDING,
            failure_count=0,
            next_try_at=sa.func.now(),
            is_due=True,
            claimed_by=None,
            ended_at=None,
            lane=endpoint.lane,  # the queue of a callback may have changed
        )
        .returning(table.c.created_at, table.c.message_id)
    ).all()
    last = max(replayed, key=tuple).message_id if len(replayed) == REPLAYS_MAX else None
    return ReplayResult(len(replayed), last)


def _require_sent(connection: sa.Connection, endpoint_id: UUID, message_id: UUID) -> None:
    table = webhook_deliveries
    sent = sa.exists().where(
        table.c.endpoint_id == endpoint_id,
        table.c.message_id == message_id,
        table.c.is_test.is_(False),
    )
    if not connection.scalar(sa.select(sent)):
        raise InvalidFieldError("No such message was sent to this endpoint.", param="message_id")


def create_test_delivery(
    connection: sa.Connection, tenant_id: UUID, endpoint_id: UUID | None, event_type: str
) -> UUID:
    """Add a sample message that is attempted once, without a circuit breaker; return its id.

    Raises EndpointNotFoundError.
    """
    endpoint = find_endpoint(connection, tenant_id, endpoint_id)
    message_id = new_uuid()
    now_s = connection.scalar(sa.text("SELECT extract(epoch FROM now())::float8"))
    data: dict[str, object] = {"id": public_id(JOB, _SAMPLE_JOB)}
    connection.execute(
        webhook_messages.insert().values(
            id=message_id,
            tenant_id=tenant_id,
            event_type=event_type,
            body=event_body(message_id, event_type, now_s or 0.0, data),
        )
    )
    connection.execute(
        webhook_deliveries.insert().values(
            message_id=message_id,
            endpoint_id=endpoint.id,
            tenant_id=tenant_id,
            lane=f"t:{endpoint.id.hex}",
            is_test=True,
        )
    )
    return message_id


def find_attempt(
    connection: sa.Connection, message_id: UUID, endpoint_id: UUID
) -> sa.Row[Any] | None:
    """Return the first attempt of a delivery, None before it."""
    return connection.execute(
        sa.select(webhook_attempts)
        .where(
            webhook_attempts.c.message_id == message_id,
            webhook_attempts.c.endpoint_id == endpoint_id,
        )
        .order_by(webhook_attempts.c.number)
        .limit(1)
    ).one_or_none()
