"""Messages that have been kept long enough go, with their deliveries and tries, a slice at once."""

from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

_SLICE: Final = 1000

_MESSAGES: Final = sa.text("""
DELETE FROM webhook_messages WHERE id IN (
    SELECT id FROM webhook_messages WHERE created_at < now() - make_interval(days => :days)
    ORDER BY created_at LIMIT :slice
)
""")

_CALLBACKS: Final = sa.text("""
DELETE FROM webhook_endpoints WHERE id IN (
    SELECT e.id FROM webhook_endpoints e LEFT JOIN jobs j ON j.id = e.job_id
    WHERE e.job_id IS NOT NULL AND e.created_at < now() - make_interval(days => :days)
        AND (j.id IS NULL OR j.state IN ('completed', 'failed', 'expired', 'cancelled'))
        AND NOT EXISTS (SELECT FROM webhook_deliveries d WHERE d.endpoint_id = e.id)
    LIMIT :slice
)
""")

_WATCHES: Final = sa.text("""
DELETE FROM webhook_watches w WHERE created_at < now() - make_interval(days => :days)
    AND (closed_at IS NOT NULL OR NOT EXISTS (SELECT FROM jobs j WHERE j.id = w.job_id))
""")

_LANES: Final = sa.text("""
DELETE FROM webhook_lanes l WHERE failing_since < now() - make_interval(days => :days)
    AND NOT EXISTS (
        SELECT FROM webhook_deliveries d WHERE d.lane = l.lane AND d.state = 'pending'
    )
""")


@dataclass(frozen=True, slots=True)
class MessageRemoval:
    """Removes; several processes may, at once."""

    engine: sa.Engine
    retention_days: int

    def step(self) -> None:
        """Remove one slice of each kind. Raises one of DATABASE_AWAY."""
        for statement in (_MESSAGES, _CALLBACKS, _WATCHES, _LANES):
            parameters: dict[str, object] = {"days": self.retention_days}
            if "slice" in statement.compile().params:
                parameters["slice"] = _SLICE
            with self.engine.begin() as connection:
                connection.execute(statement, parameters)
