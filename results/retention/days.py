"""Day partitions of `items` that no job needs: dropped whole, without a lock that others wait for.

A partition is detached CONCURRENTLY, which reads and writes of `items` do not wait for, and then
dropped as a table of its own. The ledger is no part of it.
"""

import re
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from jobs.days import job_day
from jobs.tables import jobs

DAYS_KEPT_MIN: Final = 2
"""Younger partitions stay: jobs are still created into them, or were at midnight."""

_EPOCH: Final = date(1970, 1, 1)
_NAME: Final = re.compile(r"items_\d{8}")
_TABLES: Final = sa.text("""
SELECT c.relname, i.inhrelid IS NOT NULL AS is_attached,
    coalesce(i.inhdetachpending, false) AS is_pending
FROM pg_class parent
JOIN pg_class c ON c.relnamespace = parent.relnamespace AND c.relkind = 'r'
    AND c.relname ~ '^items_[0-9]{8}$'
LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
WHERE parent.oid = 'items'::regclass ORDER BY c.relname
""")
_TIMEOUTS: Final = "SET statement_timeout = '20s'; SET lock_timeout = '5s'"


def drop_unneeded_days(engine: sa.Engine) -> int:
    """Drop partitions of days of which no job is left but tombstones; return how many.

    One that a process left half detached is found again. Raises one of DATABASE_AWAY, also when
    a lock cannot be had: the next turn tries again.
    """
    with engine.connect() as connection:
        today = job_day(connection.execute(sa.select(sa.func.now())).scalar_one())
        due = [
            table
            for table in connection.execute(_TABLES).all()
            if (day := day_of(table.relname)) is not None
            and day <= today - DAYS_KEPT_MIN
            and connection.execute(needed_query(day)).one_or_none() is None
        ]
    for table in due:
        _drop(engine, table)
    return len(due)


def day_of(name: str) -> int | None:
    """Return the day whose items a table holds; None for other tables."""
    if not _NAME.fullmatch(name):
        return None
    try:
        found = datetime.strptime(name, "items_%Y%m%d").replace(tzinfo=UTC)
    except ValueError:
        return None
    return job_day(found)


def needed_query(day: int) -> sa.Select[Any]:
    """Return the query that finds a job of a day that was not deleted."""
    begin = datetime.combine(_EPOCH + timedelta(days=day), datetime.min.time(), UTC)
    return (
        sa.select(sa.literal(1))
        .where(
            jobs.c.kind.in_(["batch", "request"]),
            jobs.c.deleted_at.is_(None),
            jobs.c.created_at >= begin,
            jobs.c.created_at < begin + timedelta(days=1),
        )
        .limit(1)
    )


def _drop(engine: sa.Engine, table: sa.Row[Any]) -> None:
    """Detach and drop. Neither may run in a transaction with anything else."""
    alone = engine.execution_options(isolation_level="AUTOCOMMIT")
    with alone.connect() as connection:
        connection.exec_driver_sql(_TIMEOUTS)
        try:
            if table.is_attached:
                how = "FINALIZE" if table.is_pending else "CONCURRENTLY"
                detach = f"ALTER TABLE items DETACH PARTITION {table.relname} {how}"
                connection.exec_driver_sql(detach)
            connection.exec_driver_sql(f"DROP TABLE {table.relname}")
        finally:
            connection.invalidate()  # its timeouts are its own
