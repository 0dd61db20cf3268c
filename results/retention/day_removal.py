"""Drops day partitions of `items` that no job needs, without blocking readers and writers.

A partition is detached CONCURRENTLY, which does not block `items`, and then dropped as a table of
its own. The usage ledger is not affected.
"""

import logging
import re
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from jobs.store.days import job_day
from jobs.tables.jobs import jobs
from storage.postgres.engines import DATABASE_UNAVAILABLE

LOG: Final = logging.getLogger(__name__)

DAYS_KEPT_MIN: Final = 2
"""Younger partitions stay: jobs are created into them, or were around midnight."""

_EPOCH: Final = date(1970, 1, 1)
_NAME: Final = re.compile(r"items_\d{8}")
_TABLES: Final = sa.text("""
SELECT c.relname, i.inhrelid IS NOT NULL AS is_attached,
    coalesce(i.inhdetachpending, false) AS is_pending
FROM pg_class parent
JOIN pg_class c ON c.relnamespace = parent.relnamespace AND c.relkind = 'r'
    AND c.relname ~ '^items_[0-9]{8}$'
LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
WHERE parent.oid = 'items'::regclass ORDER BY is_pending DESC, c.relname
""")
"""Half-detached partitions come first: Postgres detaches no other until they are finished."""

_UNDEFINED_TABLE: Final = "42P01"
_TIMEOUTS: Final = "SET statement_timeout = '20s'; SET lock_timeout = '5s'"


def drop_unneeded_days(engine: sa.Engine) -> int:
    """Drop partitions of days without jobs other than tombstones; return how many.

    Each is tried once; half-detached ones of a dead process are completed. One that Postgres
    refuses now, for example while a backup reads it, is logged and left to the next run.
    Raises one of DATABASE_UNAVAILABLE.
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
    return sum(_drop(engine, table) for table in due)


def day_of(name: str) -> int | None:
    """Return the day whose items a partition holds; None for other tables."""
    if not _NAME.fullmatch(name):
        return None
    try:
        found = datetime.strptime(name, "items_%Y%m%d").replace(tzinfo=UTC)
    except ValueError:
        return None
    return job_day(found)


def needed_query(day: int) -> sa.Select[Any]:
    """Return the query that finds one job of a day that was not deleted."""
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


def _drop(engine: sa.Engine, table: sa.Row[Any]) -> bool:
    """Detach and drop a partition; return whether it is dropped. Neither runs in a transaction."""
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    with autocommit.connect() as connection:
        try:
            connection.exec_driver_sql(_TIMEOUTS)
            if table.is_attached:
                _detach(connection, table)
            connection.exec_driver_sql(f"DROP TABLE IF EXISTS {table.relname}")
        except DATABASE_UNAVAILABLE as failure:
            if connection.invalidated:
                raise
            LOG.info(
                "a day of items stays for now",
                extra={"table": table.relname, "error": type(failure).__name__},
            )
            return False
        finally:
            connection.invalidate()  # so that its timeouts do not return to the pool
    return True


def _detach(connection: sa.Connection, table: sa.Row[Any]) -> None:
    """Detach a partition unless another process detached or dropped it."""
    how = "FINALIZE" if table.is_pending else "CONCURRENTLY"
    try:
        connection.exec_driver_sql(f"ALTER TABLE items DETACH PARTITION {table.relname} {how}")
    except sa.exc.ProgrammingError as failure:
        if getattr(failure.orig, "sqlstate", None) != _UNDEFINED_TABLE:
            raise
