"""Results in the order in which they came: the sequence of an item is the count up to it.

The writer keeps, for each job and commit, the indexes of the rows that it inserted. So the order
never changes, has no gap, and costs nothing per item; whoever knows a number can go on behind it.
"""

from typing import Final, NamedTuple
from uuid import UUID

import sqlalchemy as sa

from results.finaliser.output_lines import ItemRow
from storage.postgres.engines import raw_cursor

READ_SEQUENCE: Final = """
WITH wanted AS MATERIALIZED (
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
    SELECT wanted.sequence, ended.*,
        coalesce(sum(octet_length(ended.body)) OVER (
            ORDER BY wanted.sequence ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), 0) AS bytes_before
    FROM wanted CROSS JOIN LATERAL (
        SELECT items.item_index, outcome, status_code, custom_id, error_code, error_message, body,
            body_key, copied_from
        FROM items WHERE job_day = %b::int AND job_id = %b::uuid
            AND items.item_index = wanted.item_index LIMIT 1
    ) AS ended
)
SELECT sequence, item_index, outcome, status_code, custom_id, error_code, error_message, body,
    body_key, copied_from
FROM sized WHERE bytes_before < %b::int
    AND EXISTS (SELECT FROM jobs WHERE id = %b::uuid AND deleted_at IS NULL)
ORDER BY sequence
"""
"""LATERAL with LIMIT holds the planner to one index probe an item. Sizes cost no body."""

FIND_SEQUENCE: Final = """
SELECT first_sequence + array_position(item_indexes, %b::int)
FROM job_slices WHERE job_id = %b::uuid AND %b::int = ANY(item_indexes)
LIMIT 1
"""


class SequencedRow(NamedTuple):
    """A row of `items` and its place in the order, counted from 1."""

    sequence: int
    row: ItemRow


def read_sequence(
    connection: sa.Connection, job: tuple[UUID, int], *, after: int, limit: int, bytes_max: int
) -> list[SequencedRow]:
    """Return up to `limit` rows behind sequence `after`; `job` is its id and day.

    Of a job that was deleted there are none, though its rows may not have gone yet.
    The bodies before the last one stay below `bytes_max`, so a page is never much larger.
    """
    job_id, day = job
    cursor = raw_cursor(connection)
    parameters = [after, after, job_id, job_id, after, limit, day, job_id, bytes_max, job_id]
    cursor.execute(READ_SEQUENCE, parameters, prepare=False, binary=True)
    return [SequencedRow(sequence, ItemRow._make(row)) for sequence, *row in cursor]


def sequence_of(connection: sa.Connection, job_id: UUID, item_index: int) -> int | None:
    """Return the sequence of an item that has its row. Reads the order of the whole job."""
    cursor = raw_cursor(connection)
    cursor.execute(FIND_SEQUENCE, [item_index, job_id, item_index], prepare=False)
    found = cursor.fetchone()
    return None if found is None else int(found[0])
