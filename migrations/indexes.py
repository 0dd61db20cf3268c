"""Indexes on tables in use: built and removed beside writers, again after a build that failed.

What a revision did before is committed by then. Do it first, and only where `is_new` says so.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import sqlalchemy as sa
from alembic import op

_WAIT_S_MAX: Final = 900
"""It waits for every older transaction, and nobody behind it: it may take its time."""

_IS_VALID: Final = sa.text("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(:name)")


def is_new(table: str, column: str) -> bool:
    """Whether a revision has yet to add this column: false after a build of indexes that failed."""
    return column not in {one["name"] for one in sa.inspect(op.get_bind()).get_columns(table)}


def build(name: str, table: str, columns: Sequence[str], condition: str | None = None) -> None:
    """Create an index, unless it is there and whole, without holding up a writer of its table."""
    where = None if condition is None else sa.text(condition)
    with _patient() as connection:
        if connection.scalar(_IS_VALID, {"name": name}) is False:
            op.drop_index(name, table_name=table, postgresql_concurrently=True)
        op.create_index(
            name,
            table,
            list(columns),
            postgresql_where=where,
            postgresql_concurrently=True,
            if_not_exists=True,
        )


def drop(name: str, table: str) -> None:
    """Remove an index, if it is there, without holding up a writer of its table."""
    with _patient():
        op.drop_index(name, table_name=table, postgresql_concurrently=True, if_exists=True)


@contextmanager
def _patient() -> Iterator[sa.Connection]:
    """Outside a transaction, and with the patience of what nobody waits behind."""
    with op.get_context().autocommit_block():
        connection = op.get_bind()
        waited = connection.scalar(sa.text("SHOW lock_timeout"))
        _limit_waits(connection, f"{_WAIT_S_MAX}s")
        try:
            yield connection
        finally:
            _limit_waits(connection, str(waited))


def _limit_waits(connection: sa.Connection, limit: str) -> None:
    connection.execute(
        sa.text("SELECT set_config('lock_timeout', :limit, false)"), {"limit": limit}
    )
