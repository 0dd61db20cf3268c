"""Messages that have been kept long enough go, with their deliveries and tries, slice after slice.

A slice passes over rows that another process has in hand.
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

_CALLBACKS: Final = sa.text("""
DELETE FROM webhook_endpoints WHERE id = ANY(ARRAY(
    SELECT e.id FROM webhook_endpoints e LEFT JOIN jobs j ON j.id = e.job_id
    WHERE e.job_id IS NOT NULL AND e.created_at < now() - make_interval(days => :days)
        AND (j.id IS NULL OR j.state IN ('completed', 'failed', 'expired', 'cancelled'))
        AND NOT EXISTS (SELECT FROM webhook_deliveries d WHERE d.endpoint_id = e.id)
    LIMIT :slice FOR UPDATE OF e SKIP LOCKED
))
""")

_DELETED: Final = sa.text("""
DELETE FROM webhook_endpoints WHERE id = ANY(ARRAY(
    SELECT e.id FROM webhook_endpoints e JOIN jobs j ON j.id = e.job_id
    WHERE j.deleted_at < now() - interval '1 day' AND NOT EXISTS (
        SELECT FROM webhook_deliveries d WHERE d.endpoint_id = e.id AND d.state = 'pending'
    )
    LIMIT :slice FOR UPDATE OF e SKIP LOCKED
))
""")
"""Callbacks of deleted batches; the news of their end may still be on the way, for a day."""

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
"""Of one that was quiet for so long the next failure counts as the first, and no rest lasts on."""


@dataclass(frozen=True, slots=True)
class MessageRemoval:
    """Removes; several processes may, at once."""

    engine: sa.Engine
    retention_days: int
    is_over: Callable[[], bool] = lambda: False

    def step(self) -> None:
        """Remove all that is old, or as much until `is_over`. Raises one of DATABASE_AWAY."""
        for statement in (_MESSAGES, _CALLBACKS, _DELETED, _WATCHES, _LANES):
            count = _SLICE
            while count == _SLICE and not self.is_over():
                with self.engine.begin() as connection:
                    parameters = {"days": self.retention_days, "slice": _SLICE}
                    count = connection.execute(statement, parameters).rowcount
