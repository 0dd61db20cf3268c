"""Keeps a transaction alive while it waits for the log; Postgres ends it if its process freezes."""

from typing import Final

import sqlalchemy as sa

from topics.clients.tracked_sends import WAIT_S_MAX, TrackedSends

IDLE_S_MAX: Final = 60
"""How long such a transaction may be idle, in seconds; then another process takes over."""

assert WAIT_S_MAX < IDLE_S_MAX

LIMIT_IDLE_TIME: Final = sa.text(f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_S_MAX}s'")
"""The first statement of such a transaction: Postgres ends it after `IDLE_S_MAX`."""

_KEEPALIVE: Final = sa.text("SELECT 1")


def wait_with_keepalive(connection: sa.Connection, sends: TrackedSends) -> bool:
    """Send a keepalive to Postgres, then wait until the log has acknowledged the records.

    The locks of the transaction stay: another process that continued while these records are in
    flight would mix their order. Returns False when a partition is unavailable. Raises
    DeliveryError, and one of DATABASE_UNAVAILABLE.
    """
    connection.execute(_KEEPALIVE)
    return sends.wait_unless_unavailable()
