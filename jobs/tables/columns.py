"""Columns and indexes of the kinds that many tables have."""

from datetime import datetime

import sqlalchemy as sa


def count(
    name: str, type_: type[sa.Integer] = sa.Integer, *, comment: str | None = None
) -> sa.Column[int]:
    """Return the column of a number that starts at 0."""
    return integer(name, type_, default="0", comment=comment)


def integer(
    name: str,
    type_: type[sa.Integer] = sa.Integer,
    *,
    default: str | None = None,
    comment: str | None = None,
) -> sa.Column[int]:
    """Return the column of a number that every row has."""
    return sa.Column[int](name, type_, nullable=False, server_default=default, comment=comment)


def text(name: str, *, default: str | None = None, comment: str | None = None) -> sa.Column[str]:
    """Return the column of a text that every row has."""
    return sa.Column[str](name, sa.Text, nullable=False, server_default=default, comment=comment)


def flag(name: str, default: str, *, comment: str | None = None) -> sa.Column[bool]:
    """Return the column of a switch that every row has; `default` is true or false."""
    return sa.Column[bool](
        name, sa.Boolean, nullable=False, server_default=sa.text(default), comment=comment
    )


def timestamp(
    name: str, *, has_default: bool = False, comment: str | None = None
) -> sa.Column[datetime]:
    """Return the column of an optional time; `has_default`: always set, at first to now."""
    return sa.Column[datetime](
        name,
        sa.DateTime(timezone=True),
        nullable=not has_default,
        server_default=sa.func.now() if has_default else None,
        comment=comment,
    )


def partial_index(name: str, *columns: str, where: str, unique: bool = False) -> sa.Index:
    """Return an index of the rows that satisfy `where`, an SQL condition."""
    return sa.Index(name, *columns, unique=unique, postgresql_where=sa.text(where))


def changed_xid() -> sa.Column[int]:
    """Return the column that the trigger `mark_change` sets with each write of a row."""
    return sa.Column[int](
        "changed_xid",
        sa.BigInteger,
        nullable=False,
        server_default="0",
        index=True,
        comment="transaction that last wrote the row",
    )
