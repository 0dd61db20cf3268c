"""The outbox relay: moves committed records from the table `outbox` to the log.

    lock ─► claim ─► send ─► wait ─► delete ─► unlock

A crash between two steps sends the rows again. A record too large for every broker is parked: its
row gets a negative id, and the rows behind it are sent. Later records of the same job arrive
without it, so no record that later ones depend on may grow that large.

Rows of an unavailable partition stay in the producer and in the table; other partitions go on. A
partition gets rows only while the producer has space for it, so it cannot fill the shared queue.
Until they are acknowledged this process keeps the lock: another relay would send them, too, and mix
the order of a job's records.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import sqlalchemy as sa

from core.clock import Clock
from core.limits import RECORD_BYTES_MAX
from jobs import metrics
from jobs.store.session_lock import SessionLock
from storage.postgres.outbox import outbox
from topics.clients.offset_tracker import Partition
from topics.clients.producer import RecordProducer
from topics.clients.tracked_sends import TrackedSends
from topics.errors import DeliveryPendingError

LOG = logging.getLogger(__name__)

CLAIM_MAX: Final = 500
_ROW_BYTES_MAX: Final = RECORD_BYTES_MAX - 1000  # the log adds its own bytes to each record
_LOCK_KEY: Final = 0x6F7574626F78  # one relay at a time: two would mix the order of a job's records
_COUNT_MAX: Final = 100_000
_MEASURE_INTERVAL_S: Final = 2.0

# The addition keeps Postgres from using an index on this condition. Otherwise it would sort a
# backlog if the outbox was empty when its statistics were collected.
_IS_PENDING: Final = outbox.c.id + 0 > 0


@dataclass(frozen=True, slots=True)
class _SentRow:
    place: Partition
    sends: TrackedSends


@dataclass(slots=True)
class OutboxRelay:
    """Relays all pending rows of the outbox on each run. Used by one thread."""

    engine: sa.Engine
    producer: RecordProducer
    clock: Clock
    _lock: SessionLock = field(init=False)
    _sent: dict[int, _SentRow] = field(default_factory=dict)  # rows to delete, by id
    _measure_at_s: float = 0.0

    def __post_init__(self) -> None:
        self._lock = SessionLock(self.engine, _LOCK_KEY)

    def run_once(self) -> None:
        """Relay all rows but those of unavailable partitions. Raises DeliveryError.

        Does nothing while another process relays.
        """
        try:
            if self._lock.acquire():
                while self._relay():
                    pass
                if not self._sent:
                    self._lock.release()
        except BaseException:  # whatever failed: the next run must read the rows again
            self._forget_sent()
            raise
        now_s = self.clock.monotonic_s()
        if now_s >= self._measure_at_s:
            self._measure_at_s = now_s + _MEASURE_INTERVAL_S
            with self.engine.begin() as connection:
                pending, age_s = backlog(connection)
            metrics.OUTBOX_PENDING.set(pending)
            metrics.OUTBOX_OLDEST_AGE.set(age_s)

    def _relay(self) -> bool:
        """Send the oldest rows in the order of their ids; return whether more may be sent now."""
        self._delete_acknowledged()
        waiting = {row.place for row in self._sent.values()}
        with self.engine.begin() as connection:
            rows = connection.execute(claim_query(CLAIM_MAX, waiting)).all()
            oversized = [row for row in rows if _byte_count(row) > _ROW_BYTES_MAX]
            if oversized:
                _park_oversized(connection, oversized)
        full: set[Partition] = set()
        count = len(oversized)
        for row in rows:
            if _byte_count(row) > _ROW_BYTES_MAX:
                continue
            place = (row.topic, row.partition)
            if place in full or not self.producer.has_space(*place):
                full.add(place)  # a later row must not overtake this one
                continue
            self._sent[row.id] = self._send(row)
            count += 1
        for sent in self._sent.values():
            if sent.place not in waiting and not sent.sends.wait_unless_unavailable():
                waiting.add(sent.place)
        self._delete_acknowledged()
        metrics.OUTBOX_RELAYED.inc(count)
        return count > 0 and (len(rows) == CLAIM_MAX or bool(full))

    def _send(self, row: sa.Row[Any]) -> _SentRow:
        sends = TrackedSends(self.producer)
        sends.send(
            row.topic,
            row.value,
            partition=row.partition,
            key=row.key,
            headers=[(name, value.encode()) for name, value in row.headers],
        )
        return _SentRow((row.topic, row.partition), sends)

    def _delete_acknowledged(self) -> None:
        done = [row_id for row_id, sent in self._sent.items() if sent.sends.is_acknowledged]
        if done:
            with self.engine.begin() as connection:
                connection.execute(sa.delete(outbox).where(outbox.c.id.in_(done)))
        for row_id in done:
            del self._sent[row_id]

    def _forget_sent(self) -> None:
        """Release the lock after a failure; rows that were acknowledged are sent again.

        Raises DeliveryError if records are not acknowledged: the process must end with them before
        another relay sends them.
        """
        sent, self._sent = self._sent, {}
        self._lock.abandon()
        if any(not row.sends.is_acknowledged for row in sent.values()):
            raise DeliveryPendingError


def claim_query(limit: int, waiting: Collection[Partition] = ()) -> sa.Select[tuple[object, ...]]:
    """Return the query of the oldest pending rows of partitions that are not `waiting`."""
    rows = sa.select(outbox).where(_IS_PENDING).order_by(outbox.c.id).limit(limit)
    if waiting:
        rows = rows.where(sa.tuple_(outbox.c.topic, outbox.c.partition).not_in(list(waiting)))
    return rows


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
