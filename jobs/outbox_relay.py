"""Outbox to log: claim, send, flush, delete, commit. A crash between sends the rows again.

A row that no broker would ever take is put aside: its id becomes negative, and what is behind it
goes on. Later records of its job come without it, so none that others build upon may grow so large.
"""

import logging
from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from core.clock import Clock
from core.limits import RECORD_BYTES_MAX
from jobs import metrics
from jobs.store.transaction_keepalive import LIMIT_IDLE_TIME, flush_with_keepalive
from jobs.tables.outbox import outbox
from topics.clients.producer import LogProducer

LOG = logging.getLogger(__name__)

CLAIM_MAX: Final = 500
_ROW_BYTES_MAX: Final = RECORD_BYTES_MAX - 1000  # less what the log itself adds to a record
_LOCK_KEY: Final = 0x6F7574626F78  # one relay at a time: rivals would mix the order of a job
_COUNT_MAX: Final = 100_000
_MEASURE_S: Final = 2.0

_ALONE: Final = sa.text("SELECT pg_try_advisory_xact_lock(:key)").bindparams(key=_LOCK_KEY)

# With a sum, which no index helps: else a backlog would be sorted where the outbox was empty when
# its statistics were taken.
_WAITS: Final = outbox.c.id + 0 > 0


class OutboxRelay:
    """Empties the outbox whenever it is stepped; rows outlive every crash of it."""

    def __init__(self, engine: sa.Engine, producer: LogProducer, clock: Clock) -> None:
        """`producer` is of this relay alone: a flush waits for what others send, too."""
        self._engine = engine
        self._producer = producer
        self._clock = clock
        self._measure_at_s = 0.0

    def step(self) -> None:
        """Relay until nothing is left. Raises DeliveryError."""
        count = CLAIM_MAX
        while count == CLAIM_MAX:
            with self._engine.begin() as connection:
                count = relay(connection, self._producer)
            metrics.OUTBOX_RELAYED.inc(count)
        now_s = self._clock.monotonic_s()
        if now_s >= self._measure_at_s:
            self._measure_at_s = now_s + _MEASURE_S
            with self._engine.begin() as connection:
                pending, age_s = backlog(connection)
            metrics.OUTBOX_PENDING.set(pending)
            metrics.OUTBOX_OLDEST_AGE.set(age_s)


def claim_query(limit: int) -> sa.Select[tuple[object, ...]]:
    """Return the query that locks the oldest rows."""
    rows = sa.select(outbox).where(_WAITS).order_by(outbox.c.id).limit(limit)
    return rows.with_for_update(skip_locked=True)


def relay(connection: sa.Connection, producer: LogProducer) -> int:
    """Put the oldest rows on the log in the order of their ids; return how many are dealt with.

    One transaction: commit it afterwards, or the rows are sent again. 0 also while another
    process relays. Raises DeliveryError.
    """
    if not connection.scalar(_ALONE):
        return 0
    connection.execute(LIMIT_IDLE_TIME)
    rows = connection.execute(claim_query(CLAIM_MAX)).all()
    if not rows:
        return 0
    fitting = [row for row in rows if _byte_count(row) <= _ROW_BYTES_MAX]
    if len(fitting) < len(rows):
        _put_aside(connection, [row for row in rows if _byte_count(row) > _ROW_BYTES_MAX])
    for row in fitting:
        producer.send(
            row.topic,
            row.value,
            partition=row.partition,
            key=row.key,
            headers=[(name, value.encode()) for name, value in row.headers],
        )
    flush_with_keepalive(connection, producer)
    connection.execute(sa.delete(outbox).where(outbox.c.id.in_([row.id for row in fitting])))
    return len(rows)


def _put_aside(connection: sa.Connection, rows: Sequence[sa.Row[Any]]) -> None:
    for row in rows:
        facts = {"row": row.id, "topic": row.topic, "bytes": _byte_count(row)}
        LOG.error("record too large for the log, put aside", extra=facts)
    metrics.OUTBOX_PUT_ASIDE.inc(len(rows))
    mine = outbox.c.id.in_([row.id for row in rows])
    connection.execute(sa.update(outbox).where(mine).values(id=-outbox.c.id))


def _byte_count(row: sa.Row[Any]) -> int:
    headers = sum(len(name) + len(value) for name, value in row.headers)
    return len(row.key or b"") + len(row.value or b"") + headers


def backlog(connection: sa.Connection) -> tuple[int, float]:
    """Return how many rows wait (counted up to 100,000) and the age of the oldest in seconds."""
    some = sa.select(outbox.c.id).where(_WAITS).limit(_COUNT_MAX).subquery()
    count = connection.scalar(sa.select(sa.func.count()).select_from(some))
    age_s = connection.scalar(
        sa.select(sa.extract("epoch", sa.func.now() - outbox.c.created_at))
        .where(_WAITS)
        .order_by(outbox.c.id)
        .limit(1)
    )
    return count or 0, float(age_s or 0.0)
