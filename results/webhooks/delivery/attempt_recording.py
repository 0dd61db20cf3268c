"""How a try ended, in rows: its history, the delivery's next step, the lane's rest."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from results.webhooks.delivery.claiming import WebhookDelivery
from results.webhooks.delivery.disabled_deliveries import PENDING, drop_waiting
from results.webhooks.delivery.retry_schedule import (
    DAY_S,
    QUIET_S,
    DeliveryFailure,
    next_delay_s,
    queue_backoff_s,
)
from results.webhooks.settings import WebhookSettings
from results.webhooks.tables import (
    webhook_attempts,
    webhook_deliveries,
    webhook_endpoints,
    webhook_lanes,
)
from storage.postgres.intervals import seconds

LOG = logging.getLogger(__name__)

DELIVERED: Final = "delivered"
EXHAUSTED: Final = "exhausted"

_PUT_OFF_S: Final = 5.0

GONE: Final = "gone"
FAILING: Final = "failing"


@dataclass(frozen=True, slots=True)
class DeliveryAttempt:
    """One try, as history keeps it."""

    started_s: float  # by the database's time
    duration_s: float
    failure: DeliveryFailure | None  # None: it was answered with 2xx
    status_code: int | None
    error_code: str | None


@dataclass(frozen=True, slots=True)
class AttemptRecorder:
    """Writes ends of tries; a transaction each, the caller's."""

    settings: WebhookSettings
    fraction: Callable[[], float]  # random, uniform in [0, 1)

    def record(
        self, connection: sa.Connection, delivery: WebhookDelivery, attempt: DeliveryAttempt
    ) -> str | None:
        """Return the delivery's state now; None: written before, or claimed anew since."""
        failure = attempt.failure
        delay_s = None
        endpoint_age_s = 0.0
        if failure is not None and not delivery.is_test:
            endpoint_age_s = _lock_endpoint(connection, delivery.endpoint_id)
        if failure is None:
            state = DELIVERED
        else:
            if not delivery.is_test and not failure.is_gone:
                delay_s = next_delay_s(delivery.failure_count + 1, failure, self.fraction())
            state = EXHAUSTED if delay_s is None else PENDING
        if not self._end_try(connection, delivery, state, delay_s):
            return None
        _remember(connection, delivery, attempt)
        if not delivery.is_test:
            self._judge_lane(connection, delivery, failure, endpoint_age_s)
        return state

    def _end_try(
        self,
        connection: sa.Connection,
        delivery: WebhookDelivery,
        state: str,
        delay_s: float | None,
    ) -> bool:
        """Write the state, unless that was done or the claim was lost to a later one."""
        wait_s = (delay_s or 0.0) * self.settings.time_scale
        changed = connection.execute(
            sa.update(webhook_deliveries)
            .where(_is(delivery), webhook_deliveries.c.try_count == delivery.try_count)
            .where(webhook_deliveries.c.state == PENDING)
            # So a repeat of what was committed, though its answer was lost, changes nothing.
            .where(webhook_deliveries.c.failure_count == delivery.failure_count)
            .values(
                state=state,
                claimed_by=None,
                failure_count=delivery.failure_count + (state != DELIVERED),
                next_try_at=sa.func.now() + seconds(wait_s),
                is_due=False,
                ended_at=None if state == PENDING else sa.func.now(),
            )
        )
        return changed.rowcount == 1

    def _judge_lane(
        self,
        connection: sa.Connection,
        delivery: WebhookDelivery,
        failure: DeliveryFailure | None,
        endpoint_age_s: float,
    ) -> None:
        if failure is None:
            connection.execute(
                sa.delete(webhook_lanes).where(webhook_lanes.c.lane == delivery.lane)
            )
            return
        if failure.is_gone:
            disable_endpoint(connection, delivery.endpoint_id, GONE)
            return
        scale = self.settings.time_scale
        lane = _fail_lane(connection, delivery.lane, QUIET_S * scale)
        # Callbacks share a lane: a new one is not blamed for what the host did before.
        failing_s = min(lane.for_s, endpoint_age_s)
        if failing_s >= self.settings.disable_after_days * DAY_S * scale:
            disable_endpoint(connection, delivery.endpoint_id, FAILING)
            return
        block_s = scale * queue_backoff_s(
            lane.failure_count, self.settings.breaker_failures, failure, self.fraction()
        )
        if block_s:
            until = sa.func.now() + seconds(block_s)
            connection.execute(
                sa.update(webhook_lanes)
                .where(webhook_lanes.c.lane == delivery.lane)
                .values(blocked_until=until)
            )


def postpone_delivery(connection: sa.Connection, delivery: WebhookDelivery) -> None:
    """Give a claim back for a moment: it could not be tried, and no failure is counted."""
    connection.execute(
        sa.update(webhook_deliveries)
        .where(_is(delivery), webhook_deliveries.c.try_count == delivery.try_count)
        .where(webhook_deliveries.c.state == PENDING)
        .values(claimed_by=None, next_try_at=sa.func.now() + seconds(_PUT_OFF_S), is_due=False)
    )


def disable_endpoint(connection: sa.Connection, endpoint_id: UUID, reason: str) -> None:
    """Deliver nothing more to an endpoint until its owner enables it; drop a slice that waits."""
    disabled = connection.execute(
        sa.update(webhook_endpoints)
        .where(webhook_endpoints.c.id == endpoint_id, webhook_endpoints.c.disabled_at.is_(None))
        .values(disabled_at=sa.func.now(), disabled_reason=reason)
    )
    drop_waiting(connection, endpoint_id)
    if disabled.rowcount:
        LOG.warning("endpoint disabled", extra={"endpoint": endpoint_id, "reason": reason})


def _lock_endpoint(connection: sa.Connection, endpoint_id: UUID) -> float:
    """Return the age of an endpoint in seconds, 0 when it is gone, and put its failures in line.

    The one that disables it ends deliveries of others.
    """
    age_s: float | None = connection.scalar(
        sa.select(_seconds_since(webhook_endpoints.c.created_at))
        .where(webhook_endpoints.c.id == endpoint_id)
        .with_for_update(key_share=True)
    )
    return age_s or 0.0


def _fail_lane(connection: sa.Connection, lane: str, quiet_s: float) -> sa.Row[Any]:
    """Count a failure; return `failure_count`, and `for_s`: how long there were failures alone.

    Both begin anew when the last failure is more than `quiet_s` ago: nothing was tried since.
    """
    table = webhook_lanes
    is_quiet = table.c.last_failed_at < sa.func.now() - seconds(quiet_s)
    statement = insert(table).values(lane=lane, failure_count=1)
    counted = {
        "failure_count": sa.case((is_quiet, 1), else_=table.c.failure_count + 1),
        "failing_since": sa.case((is_quiet, sa.func.now()), else_=table.c.failing_since),
        "last_failed_at": sa.func.now(),
    }
    return connection.execute(
        statement.on_conflict_do_update(index_elements=[table.c.lane], set_=counted).returning(
            table.c.failure_count, _seconds_since(table.c.failing_since).label("for_s")
        )
    ).one()


def _seconds_since(moment: sa.ColumnElement[datetime]) -> sa.ColumnElement[float]:
    return sa.cast(sa.extract("epoch", sa.func.now() - moment), sa.Double)


def _remember(
    connection: sa.Connection, delivery: WebhookDelivery, attempt: DeliveryAttempt
) -> None:
    connection.execute(
        webhook_attempts.insert().values(
            message_id=delivery.message_id,
            endpoint_id=delivery.endpoint_id,
            number=delivery.try_count,
            started_at=datetime.fromtimestamp(attempt.started_s, UTC),
            duration_ms=int(attempt.duration_s * 1000),
            status_code=attempt.status_code,
            error_code=attempt.error_code,
        )
    )


def _is(delivery: WebhookDelivery) -> sa.ColumnElement[bool]:
    return sa.and_(
        webhook_deliveries.c.message_id == delivery.message_id,
        webhook_deliveries.c.endpoint_id == delivery.endpoint_id,
    )
