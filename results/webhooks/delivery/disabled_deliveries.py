"""Drops the waiting deliveries of disabled endpoints, a slice at a time.

There may be a million: disabling an endpoint drops one slice, and every claim that finds more drops
another.
"""

from typing import Final
from uuid import UUID

import sqlalchemy as sa

from results.webhooks.tables import webhook_deliveries, webhook_endpoints

PENDING: Final = "pending"
DROPPED: Final = "dropped"

DROP_SLICE: Final = 1000


def drop_waiting(connection: sa.Connection, endpoint_id: UUID) -> int:
    """Drop up to DROP_SLICE deliveries of an endpoint if it is disabled; return how many.

    The lock keeps the endpoint disabled meanwhile. Test deliveries, and rows locked by other
    processes, are skipped.
    """
    table, endpoints = webhook_deliveries, webhook_endpoints
    endpoint = connection.execute(
        sa.select(endpoints.c.lane, endpoints.c.job_id)
        .where(endpoints.c.id == endpoint_id, endpoints.c.disabled_at.is_not(None))
        .with_for_update(key_share=True, skip_locked=True)
    ).one_or_none()
    if endpoint is None:
        return 0
    pending = sa.select(table.c.message_id).where(
        table.c.endpoint_id == endpoint_id,
        table.c.state == sa.text(f"'{PENDING}'"),  # a literal, for the partial index
        table.c.is_test.is_(False),
    )
    if endpoint.job_id is None:
        # Ordered by queue, so that no plan scans the history, which is far longer. Callbacks are
        # excepted: they have no history and share the queue of their host.
        pending = pending.where(table.c.lane == endpoint.lane).order_by(table.c.next_try_at)
    waiting = pending.limit(DROP_SLICE).with_for_update(skip_locked=True).cte("waiting")
    dropped = connection.execute(
        sa.update(table)
        .where(table.c.endpoint_id == endpoint_id, table.c.message_id == waiting.c.message_id)
        .values(state=DROPPED, claimed_by=None, ended_at=sa.func.now())
    )
    return dropped.rowcount
