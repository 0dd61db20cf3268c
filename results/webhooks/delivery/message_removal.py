"""Removes expired messages with their deliveries and attempts, and deleted endpoints, in slices.

A slice skips rows that other processes have locked.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

_SLICE: Final = 1000

_MESSAGES: Final = sa.text("""
DELETE FROM webhook_messages WHERE id = ANY(ARRAY(
    SELECT id FROM webhook_messages WHERE created_at < now() - make_interval(days => :days)
    ORDER BY created_at LIMIT :slice FOR UPDATE SKIP LOCKED
))
""")

_WAITING: Final = sa.text("""
WITH waiting AS (
    SELECT d.message_id, d.endpoint_id FROM webhook_endpoints e CROSS JOIN LATERAL (
        SELECT message_id, endpoint_id FROM webhook_deliveries
        WHERE lane = e.lane AND endpoint_id = e.id AND state = 'pending' AND NOT is_test
        ORDER BY next_try_at LIMIT :slice FOR UPDATE SKIP LOCKED
    ) AS d
    WHERE e.job_id IS NULL AND e.disabled_at IS NOT NULL LIMIT :slice
)
UPDATE webhook_deliveries d SET state = 'dropped', claimed_by = NULL, ended_at = now()
FROM waiting WHERE d.message_id = waiting.message_id AND d.endpoint_id = waiting.endpoint_id
""")
"""Waiting deliveries of disabled endpoints. Those of callbacks are few, and dropped when they are
disabled or due. Ordered, here and below, so that no plan scans a whole table."""

_DELETED_BATCHES: Final = sa.text("""
UPDATE webhook_endpoints SET disabled_at = coalesce(disabled_at, now()), disabled_reason = 'deleted'
WHERE id = ANY(ARRAY(
    SELECT e.id FROM webhook_endpoints e JOIN jobs j ON j.id = e.job_id
    WHERE j.deleted_at < now() - interval '1 day' AND e.disabled_reason IS DISTINCT FROM 'deleted'
        AND NOT EXISTS (
            SELECT FROM webhook_deliveries d WHERE d.endpoint_id = e.id AND d.state = 'pending'
        )
    LIMIT :slice FOR NO KEY UPDATE OF e SKIP LOCKED
))
""")
"""Callbacks of deleted batches, a day later: their terminal event may still be delivered."""

_DELETED_HISTORY: Final = sa.text("""
WITH expired AS (
    SELECT d.message_id, d.endpoint_id FROM webhook_endpoints e CROSS JOIN LATERAL (
        SELECT message_id, endpoint_id FROM webhook_deliveries WHERE endpoint_id = e.id
        ORDER BY created_at, message_id LIMIT :slice FOR UPDATE SKIP LOCKED
    ) AS d
    WHERE e.disabled_reason = 'deleted' LIMIT :slice
)
DELETE FROM webhook_deliveries d USING expired
WHERE d.message_id = expired.message_id AND d.endpoint_id = expired.endpoint_id
""")

_DELETED: Final = sa.text("""
SELECT e.id FROM webhook_endpoints e WHERE e.disabled_reason = 'deleted'
    AND NOT EXISTS (SELECT FROM webhook_deliveries d WHERE d.endpoint_id = e.id)
LIMIT :slice FOR UPDATE SKIP LOCKED
""")

_CALLBACKS: Final = sa.text("""
SELECT e.id FROM webhook_endpoints e LEFT JOIN jobs j ON j.id = e.job_id
WHERE e.job_id IS NOT NULL AND e.created_at < now() - make_interval(days => :days)
    AND (j.id IS NULL OR j.state IN ('completed', 'failed', 'expired', 'cancelled')
        AND coalesce(j.completed_at, j.failed_at, j.expired_at, j.cancelled_at)
            < now() - interval '1 day')
    AND NOT EXISTS (SELECT FROM webhook_deliveries d WHERE d.endpoint_id = e.id)
LIMIT :slice FOR UPDATE OF e SKIP LOCKED
""")
"""Callbacks of old jobs, a day after their end: their terminal event may still be delivered."""

_REMOVE: Final = sa.text("""
DELETE FROM webhook_endpoints e WHERE e.id = ANY(:ids)
    AND NOT EXISTS (SELECT FROM webhook_deliveries d WHERE d.endpoint_id = e.id)
""").bindparams(sa.bindparam("ids", type_=sa.ARRAY(sa.Uuid)))
"""Checks again: a delivery may have been added just before its endpoint was locked."""

_WATCHES: Final = sa.text("""
DELETE FROM webhook_watches WHERE job_id = ANY(ARRAY(
    SELECT w.job_id FROM webhook_watches w WHERE w.created_at < now() - make_interval(days => :days)
        AND (w.closed_at IS NOT NULL OR NOT EXISTS (SELECT FROM jobs j WHERE j.id = w.job_id))
    LIMIT :slice FOR UPDATE SKIP LOCKED
))
""")

_LANES: Final = sa.text("""
DELETE FROM webhook_lanes WHERE lane = ANY(ARRAY(
    SELECT l.lane FROM webhook_lanes l WHERE l.last_failed_at < now() - interval '2 days'
    LIMIT :slice FOR UPDATE SKIP LOCKED
))
""")
"""Queue states without recent failures: the next failure would count as the first anyway."""


_STEPS: Final = (
    _MESSAGES,
    _WAITING,
    _DELETED_BATCHES,
    _DELETED_HISTORY,
    _DELETED,
    _CALLBACKS,
    _WATCHES,
    _LANES,
)


@dataclass(frozen=True, slots=True)
class MessageRemoval:
    """Any number of processes may run."""

    engine: sa.Engine
    retention_days: int
    is_stopping: Callable[[], bool] = lambda: False

    def run_once(self) -> None:
        """Remove all expired rows, or some when stopping. Raises one of DATABASE_UNAVAILABLE."""
        for step in _STEPS:
            count = _SLICE
            while count == _SLICE and not self.is_stopping():
                with self.engine.begin() as connection:
                    done = connection.execute(step, {"days": self.retention_days, "slice": _SLICE})
                    if done.returns_rows:  # endpoints
                        done = connection.execute(_REMOVE, {"ids": list(done.scalars())})
                    count = done.rowcount
