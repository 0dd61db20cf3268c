"""Builds and drops indexes concurrently with writers, and repeats a build that failed.

The revision's earlier statements are committed first. So run them before, and only if `is_new`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import sqlalchemy as sa
from alembic import op

_WAIT_S_MAX: Final = 900
"""A concurrent build waits for every older transaction, and nothing queues behind it."""

_IS_VALID: Final = sa.text("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(:name)")


def is_new(table: str, column: str) -> bool:
    """Whether the table lacks this column; False in a repetition after a failed index build."""
    return column not in {one["name"] for one in sa.inspect(op.get_bind()).get_columns(table)}


def build(
    name: str,
    table: str,
    columns: Sequence[str],
    condition: str | None = None,
    *,
    unique: bool = False,
) -> None:
    """Create an index concurrently unless a valid one exists."""
    where = None if condition is None else sa.text(condition)
    with _long_lock_timeout() as connection:
        if connection.scalar(_IS_VALID, {"name": name}) is False:
            op.drop_index(name, table_name=table, postgresql_concurrently=True)
        op.create_index(
            name,
            table,
            list(columns),
            unique=unique,
            postgresql_where=where,
            postgresql_concurrently=True,
            if_not_exists=True,
        )


def drop(name: str, table: str) -> None:
    """Drop an index concurrently, if it exists."""
    with _long_lock_timeout():
        op.drop_index(name, table_name=table, postgresql_concurrently=True, if_exists=True)


@contextmanager
def _long_lock_timeout() -> Iterator[sa.Connection]:
    """Run the block outside a transaction and with a long lock timeout."""
    with op.get_context().autocommit_block():
        connection = op.get_bind()
        before = connection.scalar(sa.text("SHOW lock_timeout"))
        _set_lock_timeout(connection, f"{_WAIT_S_MAX}s")
        try:
            yield connection
        finally:
            _set_lock_timeout(connection, str(before))


def _set_lock_timeout(connection: sa.Connection, limit: str) -> None:
    connection.execute(
        sa.text("SELECT set_config('lock_timeout', :limit, false)"), {"limit": limit}
    )
