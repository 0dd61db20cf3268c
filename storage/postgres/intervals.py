"""Lengths of time in statements, so that a time is reckoned where the database's clock is."""

from datetime import timedelta

import sqlalchemy as sa


def seconds(count: float | sa.ColumnElement[float]) -> sa.ColumnElement[timedelta]:
    """Return an interval; add it to, or take it from, a time of the database."""
    return sa.func.make_interval(0, 0, 0, 0, 0, 0, count)
