"""The outbox relay: moves committed records from the table `outbox` to the log.

    claim ─► send ─► flush ─► delete ─► commit

A crash between two steps sends the rows again. A record too large for every broker is parked: its
row gets a negative id, and the rows behind it are sent. Later records of the same job arrive
without it, so no record that later ones depend on may grow that large.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from core.clock import Clock
from core.limits import RECORD_BYTES_MAX
from jobs import metrics
from jobs.store.transaction_keepalive import LIMIT_IDLE_TIME, flush_with_keepalive
from jobs.tables.outbox import outbox
from topics.clients.producer import RecordProducer

LOG = logging.getLogger(__name__)

CLAIM_MAX: Final = 500
_ROW_BYTES_MAX: Final = RECORD_BYTES_MAX - 1000  # the log adds its own bytes to each record
_LOCK_KEY: Final = 0x6F7574626F78  # one relay at a time: two would mix the order of a job's records
_COUNT_MAX: Final = 100_000
_MEASURE_INTERVAL_S: Final = 2.0

_LOCK: Final = sa.text("SELECT pg_try_advisory_xact_lock(:key)").bindparams(key=_LOCK_KEY)

# The addition keeps Postgres from using an index on this condition. Otherwise it would sort a
# backlog if the outbox was empty when its statistics were collected.
_IS_PENDING: Final = outbox.c.id + 0 > 0


@dataclass(slots=True)
class OutboxRelay:
    """Relays all pending rows of the outbox on each run."""

    engine: sa.Engine
    producer: RecordProducer  # of this relay alone: a flush waits for all its records
    clock: Clock
    _measure_at_s: float = 0.0

    def run_once(self) -> None:
        """Relay until no row is pending. Raises DeliveryError."""
        count = CLAIM_MAX
        while count == CLAIM_MAX:
            with self.engine.begin() as connection:
                count = relay(connection, self.producer)
            metrics.OUTBOX_RELAYED.inc(count)
        now_s = self.clock.monotonic_s()
        if now_s >= self._measure_at_s:
            self._measure_at_s = now_s + _MEASURE_INTERVAL_S
            with self.engine.begin() as connection:
                pending, age_s = backlog(connection)
            metrics.OUTBOX_PENDING.set(pending)
            metrics.OUTBOX_OLDEST_AGE.set(age_s)


def claim_query(limit: int) -> sa.Select[tuple[object, ...]]:
    """Return the query that locks the oldest pending rows."""
    rows = sa.select(outbox).where(_IS_PENDING).order_by(outbox.c.id).limit(limit)
    return rows.with_for_update(skip_locked=True)


def relay(connection: sa.Connection, producer: RecordProducer) -> int:
    """Send the oldest rows in the order of their ids; return how many were sent or parked.

    Commit the transaction afterwards, or the rows are sent again. Returns 0 while another process
    relays. Raises DeliveryError.
    """
    if not connection.scalar(_LOCK):
        return 0
    connection.execute(LIMIT_IDLE_TIME)
    rows = connection.execute(claim_query(CLAIM_MAX)).all()
    if not rows:
        return 0
    sendable = [row for row in rows if _byte_count(row) <= _ROW_BYTES_MAX]
    if len(sendable) < len(rows):
        _park_oversized(connection, [row for row in rows if _byte_count(row) > _ROW_BYTES_MAX])
    for row in sendable:
        producer.send(
            row.topic,
            row.value,
            partition=row.partition,
            key=row.key,
            headers=[(name, value.encode()) for name, value in row.headers],
        )
    flush_with_keepalive(connection, producer)
    connection.execute(sa.delete(outbox).where(outbox.c.id.in_([row.id for row in sendable])))
    return len(rows)


def _park_oversized(connection: sa.Connection, rows: Sequence[sa.Row[Any]]) -> None:
    for row in rows:
        facts = {"row": row.id, "topic": row.topic, "bytes": _byte_count(row)}
        LOG.error("record too large for the log, put aside", extra=facts)
    metrics.OUTBOX_PUT_ASIDE.inc(len(rows))
    is_oversized = outbox.c.id.in_([row.id for row in rows])
    connection.execute(sa.update(outbox).where(is_oversized).values(id=-outbox.c.id))


def _byte_count(row: sa.Row[Any]) -> int:
    headers = sum(len(name) + len(value) for name, value in row.headers)
    return len(row.key or b"") + len(row.value or b"") + headers


def backlog(connection: sa.Connection) -> tuple[int, float]:
    """Return the number of pending rows (at most 100,000) and the age of the oldest in seconds."""
    pending = sa.select(outbox.c.id).where(_IS_PENDING).limit(_COUNT_MAX).subquery()
    count = connection.scalar(sa.select(sa.func.count()).select_from(pending))
    age_s = connection.scalar(
        sa.select(sa.extract("epoch", sa.func.now() - outbox.c.created_at))
        .where(_IS_PENDING)
        .order_by(outbox.c.id)
        .limit(1)
    )
    return count or 0, float(age_s or 0.0)
