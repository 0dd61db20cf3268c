"""Transactions that wait for the log: Postgres cuts one whose process is frozen, and no other."""

from typing import Final

import sqlalchemy as sa

from topics.clients.producer import LogProducer
from topics.errors import DeliveryPendingError

IDLE_S_MAX: Final = 60
"""How long a process in such a transaction may be silent; then the next one goes on."""

_FLUSH_S: Final = 30.0

LIMIT_IDLE_TIME: Final = sa.text(f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_S_MAX}s'")
"""The first statement of such a transaction."""

_LIVES: Final = sa.text("SELECT 1")


def flush_with_keepalive(connection: sa.Connection, producer: LogProducer) -> None:
    """Wait for everything sent, as long as the log may take, and show Postgres life meanwhile.

    What the transaction locks stays locked: a rival that went on with it while our records are on
    their way would mix their order. Raises DeliveryError, and one of DATABASE_AWAY.
    """
    while True:
        connection.execute(_LIVES)
        try:
            producer.flush(_FLUSH_S)
        except DeliveryPendingError:
            continue  # the log's client gives each record up by itself in the end
        return
