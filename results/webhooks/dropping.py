"""What waits for an endpoint that is disabled ends, a slice at a time.

The wait may be of a million deliveries: whoever disables ends a slice, and the claims, which find
what is left, end a slice each.
"""

from typing import Final
from uuid import UUID

import sqlalchemy as sa

from results.webhooks.tables import webhook_deliveries, webhook_endpoints

PENDING: Final = "pending"
DROPPED: Final = "dropped"

DROP_SLICE: Final = 1000


def drop_waiting(connection: sa.Connection, endpoint_id: UUID) -> int:
    """End up to DROP_SLICE deliveries of an endpoint that is disabled; return how many.

    A trial that was asked for goes on. What another process has in hand is passed over.
    """
    table = webhook_deliveries
    lane = connection.scalar(
        sa.select(webhook_endpoints.c.lane).where(webhook_endpoints.c.id == endpoint_id)
    )
    waiting = (
        sa.select(table.c.message_id)
        .where(
            # By its lane: the history of an endpoint is far longer than what waits for it.
            table.c.lane == lane,
            table.c.endpoint_id == endpoint_id,
            table.c.state == sa.text(f"'{PENDING}'"),  # as the index says it
            table.c.is_test.is_(False),
        )
        .order_by(table.c.next_try_at)  # so that no plan looks at all that is not pending
        .limit(DROP_SLICE)
        .with_for_update(skip_locked=True)
        .cte("waiting")
    )
    dropped = connection.execute(
        sa.update(table)
        .where(table.c.endpoint_id == endpoint_id, table.c.message_id == waiting.c.message_id)
        .values(state=DROPPED, claimed_by=None, ended_at=sa.func.now())
    )
    return dropped.rowcount
