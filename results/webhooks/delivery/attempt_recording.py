"""Records the outcome of a delivery attempt: history, next state, backoff of the delivery queue."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from results.webhooks.delivery.claiming import PENDING, WebhookDelivery, drop_waiting
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
from storage.postgres.database_times import seconds

LOG = logging.getLogger(__name__)

DELIVERED: Final = "delivered"
EXHAUSTED: Final = "exhausted"

_POSTPONED_S: Final = 5.0

GONE: Final = "gone"
FAILING: Final = "failing"


@dataclass(frozen=True, slots=True)
class DeliveryAttempt:
    """One attempt, as the history stores it."""

    started_s: float  # by the database's clock
    duration_s: float
    failure: DeliveryFailure | None  # None: a 2xx response
    status_code: int | None
    error_code: str | None


@dataclass(frozen=True, slots=True)
class AttemptRecorder:
    """Records attempts in the transactions of the caller."""

    settings: WebhookSettings
    fraction: Callable[[], float]  # random, uniform in [0, 1)

    def record(
        self, connection: sa.Connection, delivery: WebhookDelivery, attempt: DeliveryAttempt
    ) -> str | None:
        """Return the new state; None if it was recorded before, or the claim has expired."""
        failure = attempt.failure
        delay_s = None
        endpoint_age_s = 0.0
        if failure is not None and not delivery.is_test:
            endpoint_age_s = _lock_endpoint(connection, delivery.endpoint_id)
        if failure is None:
            state = DELIVERED
        else:
            if not delivery.is_test and not failure.is_permanent:
                delay_s = next_delay_s(delivery.failure_count + 1, failure, self.fraction())
            state = EXHAUSTED if delay_s is None else PENDING
        if not self._update_delivery(connection, delivery, state, delay_s):
            return None
        _insert_attempt(connection, delivery, attempt)
        if not delivery.is_test:
            self._update_queue(connection, delivery, failure, endpoint_age_s)
        return state

    def _update_delivery(
        self,
        connection: sa.Connection,
        delivery: WebhookDelivery,
        state: str,
        delay_s: float | None,
    ) -> bool:
        """Set the state, unless it was set before or the delivery was claimed again."""
        wait_s = (delay_s or 0.0) * self.settings.time_scale
        changed = connection.execute(
            sa.update(webhook_deliveries)
            .where(_is_claimed(delivery))
            # A repeat after a commit whose response was lost changes nothing.
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

    def _update_queue(
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
        if failure.is_permanent:
            disable_endpoint(connection, delivery.endpoint_id, GONE)
            return
        scale = self.settings.time_scale
        queue = _count_failure(connection, delivery.lane, QUIET_S * scale)
        # Callbacks to one host share a queue: a new one is not disabled for earlier failures.
        failing_s = min(queue.for_s, endpoint_age_s)
        if failing_s >= self.settings.disable_after_days * DAY_S * scale:
            disable_endpoint(connection, delivery.endpoint_id, FAILING)
            return
        block_s = scale * queue_backoff_s(
            queue.failure_count, self.settings.breaker_failures, failure, self.fraction()
        )
        if block_s:
            until = sa.func.now() + seconds(block_s)
            connection.execute(
                sa.update(webhook_lanes)
                .where(webhook_lanes.c.lane == delivery.lane)
                .values(blocked_until=until)
            )


def postpone_delivery(connection: sa.Connection, delivery: WebhookDelivery) -> None:
    """Release a claim for some seconds without counting a failure: no attempt was possible."""
    connection.execute(
        sa.update(webhook_deliveries)
        .where(_is_claimed(delivery))
        .values(claimed_by=None, next_try_at=sa.func.now() + seconds(_POSTPONED_S), is_due=False)
    )


def disable_endpoint(connection: sa.Connection, endpoint_id: UUID, reason: str) -> None:
    """Stop deliveries to an endpoint until its owner enables it; drop a slice of waiting ones."""
    disabled = connection.execute(
        sa.update(webhook_endpoints)
        .where(webhook_endpoints.c.id == endpoint_id, webhook_endpoints.c.disabled_at.is_(None))
        .values(disabled_at=sa.func.now(), disabled_reason=reason)
    )
    drop_waiting(connection, endpoint_id)
    if disabled.rowcount:
        LOG.warning("endpoint disabled", extra={"endpoint": endpoint_id, "reason": reason})


def _lock_endpoint(connection: sa.Connection, endpoint_id: UUID) -> float:
    """Lock an endpoint and return its age in seconds, 0 when it does not exist.

    The lock serialises its failures, since the one that disables it ends other deliveries.
    """
    age_s: float | None = connection.scalar(
        sa.select(_seconds_since(webhook_endpoints.c.created_at))
        .where(webhook_endpoints.c.id == endpoint_id)
        .with_for_update(key_share=True)
    )
    return age_s or 0.0


def _count_failure(connection: sa.Connection, lane: str, quiet_s: float) -> sa.Row[Any]:
    """Count a failure; return `failure_count` and `for_s`, the time since the first failure.

    Both start again when the last failure is more than `quiet_s` ago: there was no attempt since.
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


def _insert_attempt(
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


def _is_claimed(delivery: WebhookDelivery) -> sa.ColumnElement[bool]:
    """Return the condition that the row of a delivery still has this claim."""
    columns = webhook_deliveries.c
    return sa.and_(
        columns.message_id == delivery.message_id,
        columns.endpoint_id == delivery.endpoint_id,
        columns.try_count == delivery.try_count,
        columns.state == PENDING,
    )
