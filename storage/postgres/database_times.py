"""Times by the database's clock, which decides wherever hosts' clocks may differ."""

from datetime import timedelta
from typing import Final

import sqlalchemy as sa

_NOW: Final = sa.text("SELECT extract(epoch FROM clock_timestamp())::float8")


def seconds(count: float | sa.ColumnElement[float]) -> sa.ColumnElement[timedelta]:
    """Return an SQL interval of `count` seconds."""
    return sa.func.make_interval(0, 0, 0, 0, 0, 0, count)


def database_now_s(engine: sa.Engine) -> float:
    """Return the database's time, seconds since the epoch. Raises one of DATABASE_UNAVAILABLE."""
    with engine.connect() as connection:
        now_s: float = connection.execute(_NOW).scalar_one()
    return now_s
