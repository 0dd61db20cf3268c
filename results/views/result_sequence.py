"""Reads results in the order in which they were written; an item's sequence is its rank, from 1.

The writer stores the indexes of the rows that it inserted, per job and commit. So the order never
changes, has no gaps and costs nothing per item, and a client can continue after any sequence.
"""

from typing import Final, NamedTuple
from uuid import UUID

import sqlalchemy as sa

from results.finaliser.output_lines import ItemRow
from storage.postgres.engines import raw_cursor
from storage.postgres.items import item_columns

READ_SEQUENCE: Final = f"""
WITH page AS MATERIALIZED (
    SELECT (greatest(%b::int, s.first_sequence) + u.place)::int AS sequence, u.item_index
    FROM job_slices s
    CROSS JOIN LATERAL unnest(s.item_indexes[greatest(%b::int - s.first_sequence, 0) + 1:])
        WITH ORDINALITY AS u (item_index, place)
    WHERE s.job_id = %b::uuid AND s.first_sequence >= coalesce((
        SELECT max(first_sequence) FROM job_slices WHERE job_id = %b::uuid
            AND first_sequence <= %b::int
    ), 0)
    ORDER BY s.first_sequence, u.place
    LIMIT %b::int
), sized AS (
    SELECT page.sequence, ended.*,
        coalesce(sum(octet_length(ended.body)) OVER (
            ORDER BY page.sequence ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), 0) AS bytes_before
    FROM page CROSS JOIN LATERAL (
        SELECT {item_columns(ItemRow._fields, "items")}
        FROM items WHERE job_day = %b::int AND job_id = %b::uuid
            AND items.item_index = page.item_index LIMIT 1
    ) AS ended
)
SELECT sequence, {item_columns(ItemRow._fields)}
FROM sized WHERE bytes_before < %b::int
    AND EXISTS (SELECT FROM jobs WHERE id = %b::uuid AND deleted_at IS NULL)
ORDER BY sequence
"""  # noqa: S608  no outside input
"""LATERAL with LIMIT forces one index probe per item. Summing sizes reads no body."""

FIND_SEQUENCE: Final = """
SELECT first_sequence + array_position(item_indexes, %b::int)
FROM job_slices WHERE job_id = %b::uuid AND %b::int = ANY(item_indexes)
LIMIT 1
"""


class SequencedRow(NamedTuple):
    """An item row and its sequence."""

    sequence: int
    row: ItemRow


def read_sequence(
    connection: sa.Connection, job: tuple[UUID, int], *, after: int, limit: int, bytes_max: int
) -> list[SequencedRow]:
    """Return up to `limit` rows after sequence `after`; `job` is its id and day.

    None of a deleted job, although its rows may still exist. The bodies before the last row stay
    below `bytes_max`, which bounds a page.
    """
    job_id, day = job
    cursor = raw_cursor(connection)
    parameters = [after, after, job_id, job_id, after, limit, day, job_id, bytes_max, job_id]
    cursor.execute(READ_SEQUENCE, parameters, prepare=False, binary=True)
    return [SequencedRow(sequence, ItemRow._make(row)) for sequence, *row in cursor]


def sequence_of(connection: sa.Connection, job_id: UUID, item_index: int) -> int | None:
    """Return the sequence of an item that has its row. Reads the complete order of the job."""
    cursor = raw_cursor(connection)
    cursor.execute(FIND_SEQUENCE, [item_index, job_id, item_index], prepare=False)
    found = cursor.fetchone()
    return None if found is None else int(found[0])
