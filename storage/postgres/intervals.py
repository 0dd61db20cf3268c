"""Intervals for SQL, so that times are computed by the database's clock."""

from datetime import timedelta

import sqlalchemy as sa


def seconds(count: float | sa.ColumnElement[float]) -> sa.ColumnElement[timedelta]:
    """Return an SQL interval of `count` seconds."""
    return sa.func.make_interval(0, 0, 0, 0, 0, 0, count)
