"""Drops day partitions of `items` and `billed_calls` without blocking readers and writers.

A partition is detached CONCURRENTLY, which does not block the partitioned table, and then dropped
as a table of its own. The usage ledger is not affected.
"""

import logging
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from jobs.store.days import job_day
from jobs.tables.jobs import jobs
from results.tables import billed_calls
from storage.postgres.engines import DATABASE_UNAVAILABLE, autocommit
from storage.postgres.items import items
from topics.records.catalogue import RETENTION_DAYS, SEGMENT_DAYS

LOG: Final = logging.getLogger(__name__)

DAYS_KEPT_MIN: Final = 2
"""Younger partitions of items stay: jobs are created into them, or were around midnight."""

BILL_DAYS: Final = RETENTION_DAYS + SEGMENT_DAYS + 1
"""Days that billed calls are remembered: the longest that a quiet partition of the log keeps a
record, plus one."""

_EPOCH: Final = date(1970, 1, 1)
_NAME: Final = re.compile(r"(?:items|billed_calls)(_before)?_(\d{8})")
_BEFORE: Final = "_before_"
"""In the name of the partition of all days before one: what revision 0027 made of the table."""

_TABLES: Final = sa.text("""
SELECT parent.relname AS parent, c.relname, i.inhrelid IS NOT NULL AS is_attached,
    coalesce(i.inhdetachpending, false) AS is_pending
FROM pg_class parent
JOIN pg_class c ON c.relnamespace = parent.relnamespace AND c.relkind = 'r'
    AND c.relname ~ ('^' || parent.relname || '(_before)?_[0-9]{8}$')
LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
WHERE parent.oid = CAST(:parent AS regclass) ORDER BY is_pending DESC, c.relname
""")
"""Half-detached partitions come first: Postgres detaches no other until they are finished."""

_UNDEFINED_TABLE: Final = "42P01"
_TIMEOUTS: Final = "SET statement_timeout = '20s'; SET lock_timeout = '5s'"


def drop_unneeded_days(engine: sa.Engine) -> int:
    """Drop partitions of items of days without jobs other than tombstones; return how many.

    Each is tried once; half-detached ones of a dead process are completed. One that Postgres
    refuses now, for example while a backup reads it, is logged and left to the next run.
    Raises one of DATABASE_UNAVAILABLE.
    """
    return _drop_days(engine, items, DAYS_KEPT_MIN, lambda _, day: needed_query(day))


def drop_old_bills(engine: sa.Engine) -> int:
    """Drop partitions of billed calls of which the log has no record any more, in the same way.

    A partition is named by the clocks of api processes, so the times of its rows decide, too.
    """
    return _drop_days(engine, billed_calls, BILL_DAYS + 1, recent_bill_query)


def _drop_days(
    engine: sa.Engine,
    table: sa.Table,
    days_kept: int,
    needed: Callable[[str, int], sa.Select[Any]],
) -> int:
    """Drop partitions whose last day is `days_kept` ago, unless `needed` finds a row."""
    with engine.connect() as connection:
        today = job_day(connection.execute(sa.select(sa.func.now())).scalar_one())
        found = connection.execute(_TABLES, {"parent": table.name}).all()
        due = [
            part
            for part in found
            if (day := day_of(part.relname)) is not None
            and day <= today - days_kept
            and connection.execute(needed(part.relname, day)).one_or_none() is None
        ]
    return sum(_drop(engine, part) for part in due)


def day_of(name: str) -> int | None:
    """Return the last day whose rows a partition holds; None for other tables."""
    parsed = _NAME.fullmatch(name)
    if parsed is None:
        return None
    try:
        found = datetime.strptime(parsed[2], "%Y%m%d").replace(tzinfo=UTC)
    except ValueError:
        return None
    return job_day(found) - (parsed[1] is not None)


def recent_bill_query(name: str, day: int) -> sa.Select[Any]:
    """Return the query that finds one call of a partition that was billed not long ago."""
    part_day = billed_calls.c.request_day
    is_in_it = part_day <= day if _BEFORE in name else part_day == day
    since = sa.func.now() - sa.func.make_interval(0, 0, 0, BILL_DAYS)
    return sa.select(sa.literal(1)).where(is_in_it, billed_calls.c.billed_at >= since).limit(1)


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
    with autocommit(engine) as connection:
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
        connection.exec_driver_sql(
            f"ALTER TABLE {table.parent} DETACH PARTITION {table.relname} {how}"
        )
    except sa.exc.ProgrammingError as failure:
        if getattr(failure.orig, "sqlstate", None) != _UNDEFINED_TABLE:
            raise
