"""Keeps a transaction alive while it waits for the log; Postgres ends it if its process freezes."""

from typing import Final

import sqlalchemy as sa

from topics.clients.producer import RecordProducer
from topics.errors import DeliveryPendingError

IDLE_S_MAX: Final = 60
"""How long such a transaction may be idle, in seconds; then another process takes over."""

_FLUSH_S: Final = 30.0

LIMIT_IDLE_TIME: Final = sa.text(f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_S_MAX}s'")
"""The first statement of such a transaction: Postgres ends it after `IDLE_S_MAX`."""

_KEEPALIVE: Final = sa.text("SELECT 1")


def flush_with_keepalive(connection: sa.Connection, producer: RecordProducer) -> None:
    """Wait until the log has acknowledged every record; send keepalives to Postgres meanwhile.

    The locks of the transaction stay: another process that continued while these records are in
    flight would mix their order. Raises DeliveryError, and one of DATABASE_UNAVAILABLE.
    """
    while True:
        connection.execute(_KEEPALIVE)
        try:
            producer.flush(_FLUSH_S)
        except DeliveryPendingError:
            continue  # the producer fails each record by itself after its delivery timeout
        return
