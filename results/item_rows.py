"""The item rows of a settled job in index order, in constant memory."""

from collections.abc import Callable, Iterator
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from core.errors import MillraceError
from results.output_lines import ItemRow
from storage.postgres import raw_cursor

PAGE_ITEMS: Final = 5000
"""Rows of one query: between two the lease is looked at and no transaction is open."""

_CHUNK_ROWS: Final = 100  # held at once; bodies of 1 MB make 100 MB of them

PAGE_OPTIONS: Final = "SET LOCAL statement_timeout = '600s'; SET LOCAL enable_sort = off"
"""The object store's pace counts into a page's time. A sort would hold a page at once; the key has
the order already, which the planner does not always believe."""

READ_ITEMS: Final = """
SELECT item_index, outcome, status_code, custom_id, error_code, error_message, body, body_key,
    copied_from
FROM items
WHERE job_day = %b::int AND job_id = %b::uuid
    AND item_index >= %b::int AND item_index < %b::int
ORDER BY item_index
"""


class RowMissingError(MillraceError):
    """A settled job lacks the row of an item."""

    code = "row_missing"


def item_rows(
    engine: sa.Engine, job_id: UUID, *, day: int, total_count: int, check: Callable[[], None]
) -> Iterator[ItemRow]:
    """Yield one row for every index below `total_count`; `check` is called before each page.

    Raises RowMissingError, and whatever `check` raises.
    """
    expected = 0
    for first in range(0, total_count, PAGE_ITEMS):
        check()
        last = min(first + PAGE_ITEMS, total_count)
        for row in map(ItemRow._make, _page(engine, [day, job_id, first, last])):
            if row.item_index != expected:
                raise RowMissingError(job=job_id, index=expected)
            expected += 1
            yield row
    if expected != total_count:
        raise RowMissingError(job=job_id, index=expected)


def _page(engine: sa.Engine, parameters: list[Any]) -> Iterator[tuple[Any, ...]]:
    with engine.connect() as connection:
        cursor = raw_cursor(connection)
        cursor.execute(PAGE_OPTIONS)
        yield from cursor.stream(READ_ITEMS, parameters, binary=True, size=_CHUNK_ROWS)
