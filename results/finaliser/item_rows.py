"""The item rows of a settled job in index order, in constant memory.

Rows are held before they are yielded, and no transaction is open meanwhile: whoever takes them may
copy an object of the store for each, which lasts as long as the store wants.
"""

import contextlib
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final, cast
from uuid import UUID

import sqlalchemy as sa

from core.errors import MillraceError
from results.finaliser.output_lines import ItemRow
from storage.postgres.engines import raw_cursor

PAGE_ITEMS: Final = 5000
"""Rows of one transaction at most: between two the lease is looked at."""

PAGE_BYTES: Final = 4 * 1024 * 1024
"""Bytes of bodies that end a page with the chunk they are in."""

CHUNK_ROWS: Final = 100  # come at once; bodies of 512 KiB make 50 MiB of them

PAGE_OPTIONS: Final = "SET LOCAL enable_sort = off"
"""The key has the order already, which the planner does not always believe."""

READ_ITEMS: Final = """
SELECT item_index, outcome, status_code, custom_id, error_code, error_message, body, body_key,
    copied_from
FROM items
WHERE job_day = %b::int AND job_id = %b::uuid
    AND item_index >= %b::int AND item_index < %b::int
ORDER BY item_index
"""


class RowNotFoundError(MillraceError):
    """A settled job lacks the row of an item."""

    code = "row_missing"


def item_rows(
    engine: sa.Engine, job_id: UUID, *, day: int, total_count: int, check: Callable[[], None]
) -> Iterator[ItemRow]:
    """Yield one row for every index below `total_count`.

    `check` is called before each page, and before each row whose body is an object.
    Raises RowNotFoundError, and whatever `check` raises.
    """
    expected, asked = 0, PAGE_ITEMS
    while expected < total_count:
        check()
        indexes = range(expected, min(expected + asked, total_count))
        rows, size_bytes = _page(engine, job_id, day, indexes)
        asked = _rows_to_ask_for(len(rows), size_bytes)
        if not rows:
            raise RowNotFoundError(job=job_id, index=expected)
        for row in rows:
            if row.item_index != expected:
                raise RowNotFoundError(job=job_id, index=expected)
            if row.body_key is not None:
                check()
            expected += 1
            yield row


def _rows_to_ask_for(row_count: int, size_bytes: int) -> int:
    """Return how many rows like those of the last page have PAGE_BYTES: cutting a page costs."""
    fitting = PAGE_BYTES * row_count // max(1, size_bytes)
    return max(CHUNK_ROWS, min(PAGE_ITEMS, fitting // CHUNK_ROWS * CHUNK_ROWS))


def _page(engine: sa.Engine, job_id: UUID, day: int, indexes: range) -> tuple[list[ItemRow], int]:
    """Return the rows of the first of `indexes`, as many as have PAGE_BYTES, and their bytes."""
    rows: list[ItemRow] = []
    size_bytes = 0
    with engine.connect() as connection:
        cursor = raw_cursor(connection)
        cursor.execute(PAGE_OPTIONS)
        asked = [day, job_id, indexes.start, indexes.stop]
        stream = cast(
            "Generator[tuple[Any, ...]]",
            cursor.stream(READ_ITEMS, asked, binary=True, size=CHUNK_ROWS),
        )
        with contextlib.closing(stream):  # what was not read of it is cancelled
            for row in map(ItemRow._make, stream):
                rows.append(row)
                size_bytes += len(row.body or b"")
                is_full = size_bytes >= PAGE_BYTES and len(rows) % CHUNK_ROWS == 0
                if is_full and len(rows) < len(indexes):
                    break
    return rows, size_bytes
