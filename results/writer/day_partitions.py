"""Creates the daily partitions of `items` and `billed_calls` before their first row.

The day is that of the creation of the job or call. An advisory lock serialises writers that create
the same partition, so that the second one finds it.
"""

import time
from collections.abc import Iterable
from datetime import date, timedelta
from typing import Final

import sqlalchemy as sa

from storage.postgres.engines import DATABASE_UNAVAILABLE
from storage.postgres.items import items

_EPOCH: Final = date(1970, 1, 1)
_ADVISORY_LOCK: Final = 0x6974656D  # one creation at a time in one database
_LOCK_TIMEOUT_MS: Final = 1000  # while this waits for the table, every reader queues behind it
_TRIES_MAX: Final = 10
_PAUSE_S: Final = 0.2


_OVERLAPS: Final = "42P17"  # invalid_object_definition


class DayPartitions:
    """Caches which days of a table have a partition; one instance per process and table."""

    def __init__(self, engine: sa.Engine, table: sa.Table = items) -> None:
        self._engine = engine
        self._table = table.name
        self._known: set[int] = set()

    def ensure(self, days: Iterable[int]) -> None:
        """Create the missing partitions of `days`; a cached day costs nothing.

        Raises one of DATABASE_UNAVAILABLE when the lock cannot be acquired.
        """
        for day in days:
            if day not in self._known:
                self._ensure(day)
                self._known.add(day)

    def forget(self, days: Iterable[int]) -> None:
        """Examine the partitions of `days` again, as retention may have dropped one."""
        self._known.difference_update(days)

    def _ensure(self, day: int) -> None:
        for tries_left in reversed(range(_TRIES_MAX)):
            try:
                with self._engine.begin() as connection:
                    _create(connection, self._table, day)
                return
            except DATABASE_UNAVAILABLE:
                if not tries_left:
                    raise
                time.sleep(_PAUSE_S)  # lets the queries behind this lock request run first
            except sa.exc.DBAPIError as failure:
                if getattr(failure.orig, "sqlstate", None) != _OVERLAPS:
                    raise
                return  # a partition of many days covers this one


def partition_name(day: int, table: str = items.name) -> str:
    """Return the name of the partition of `table` for jobs or calls created on `day`."""
    return f"{table}_{_EPOCH + timedelta(days=day):%Y%m%d}"


def _create(connection: sa.Connection, table: str, day: int) -> None:
    """Create, then attach: attaching does not block reads and writes of the table."""
    name = partition_name(day, table)
    connection.execute(sa.text(f"SET LOCAL lock_timeout = {_LOCK_TIMEOUT_MS}"))
    connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)").bindparams(key=_ADVISORY_LOCK))
    if connection.scalar(sa.text("SELECT to_regclass(:name)").bindparams(name=name)) is not None:
        return
    connection.execute(sa.text(f"CREATE TABLE {name} (LIKE {table} INCLUDING ALL)"))
    bounds = f"FROM ({day}) TO ({day + 1})"
    connection.execute(sa.text(f"ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES {bounds}"))
