"""Creates the daily partitions of `items` (by day of job creation) before their first row.

An advisory lock serialises writers that create the same partition, so that the second one finds it.
"""

import time
from collections.abc import Iterable
from datetime import date, timedelta
from typing import Final

import sqlalchemy as sa

from storage.postgres.engines import DATABASE_UNAVAILABLE

_EPOCH: Final = date(1970, 1, 1)
_ADVISORY_LOCK: Final = 0x6974656D  # one creation at a time in one database
_LOCK_TIMEOUT_MS: Final = 1000  # while this waits for `items`, every reader queues behind it
_TRIES_MAX: Final = 10
_PAUSE_S: Final = 0.2


class DayPartitions:
    """Caches which days have a partition; one instance per process."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._known: set[int] = set()

    def ensure(self, days: Iterable[int]) -> None:
        """Create the missing partitions of `days`; a cached day costs nothing.

        Raises one of DATABASE_UNAVAILABLE when the lock cannot be acquired.
        """
        for day in days:
            if day not in self._known:
                self._ensure(day)
                self._known.add(day)

    def _ensure(self, day: int) -> None:
        for tries_left in reversed(range(_TRIES_MAX)):
            try:
                with self._engine.begin() as connection:
                    _create(connection, day)
                return
            except DATABASE_UNAVAILABLE:
                if not tries_left:
                    raise
                time.sleep(_PAUSE_S)  # lets the queries behind this lock request run first


def partition_name(day: int) -> str:
    """Return the name of the table that holds the items of jobs created on `day`."""
    return f"items_{_EPOCH + timedelta(days=day):%Y%m%d}"


def _create(connection: sa.Connection, day: int) -> None:
    """Create, then attach: attaching does not block reads and writes of `items`."""
    name = partition_name(day)
    connection.execute(sa.text(f"SET LOCAL lock_timeout = {_LOCK_TIMEOUT_MS}"))
    connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)").bindparams(key=_ADVISORY_LOCK))
    if connection.scalar(sa.text("SELECT to_regclass(:name)").bindparams(name=name)) is not None:
        return
    connection.execute(sa.text(f"CREATE TABLE {name} (LIKE items INCLUDING ALL)"))
    connection.execute(
        sa.text(f"ALTER TABLE items ATTACH PARTITION {name} FOR VALUES FROM ({day}) TO ({day + 1})")
    )
