"""Fingerprints of item rows and of outcomes on the log, a few bytes per item."""

from array import array
from collections.abc import Iterable
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from core.outcomes import Outcome
from results.audit.recorded_totals import TOKENS
from results.writer.item_writer import UNSTORABLE_CODE
from storage.postgres.engines import raw_cursor
from storage.postgres.items import item_columns
from topics.records.records import ItemOutcome

_FAILED: Final = Outcome.FAILED.value

_FIELDS: Final = ("outcome", "status_code", "attempt", *TOKENS, "error_code")
_READ: Final = f"""
SELECT item_index, {item_columns(_FIELDS)}, coalesce(octet_length(body), 0),
    body_key, copied_from, extract(epoch FROM finished_at)::float8
FROM items
WHERE job_day = %b::int AND job_id = %b::uuid
    AND item_index >= %b::int AND item_index < %b::int
"""  # noqa: S608  no outside input
_READ_COPIES: Final = """
SELECT item_index, original_index FROM item_copies
WHERE job_id = %b::uuid AND item_index >= %b::int AND item_index < %b::int
"""


class ItemFingerprints:
    """One hash per item of a job; comparable within one process only."""

    def __init__(self, total_count: int) -> None:
        self.known = bytearray(total_count)
        self.prints = array("q", bytes(8 * total_count))

    def record(self, index: int, fields: tuple[object, ...]) -> None:
        """Record the fields of an item."""
        self.known[index] = 1
        self.prints[index] = hash(fields)


class RowFingerprints(ItemFingerprints):
    """Fingerprints of a job's item rows."""

    def __init__(self, total_count: int) -> None:
        super().__init__(total_count)
        self.unstorable: dict[int, int] = {}
        """Items whose result Postgres refused, and the attempt that produced it: the log has a
        result that no row can store."""
        self.originals = array("i")
        """The index of each copy's original, -1 for other items; empty in jobs without copies."""
        self.first_row_s: float | None = None
        """When the earliest row was written."""

    def read(self, connection: sa.Connection, job: tuple[UUID, int], span: range) -> None:
        """Read the rows of an index range; `job` is its id and day."""
        job_id, day = job
        cursor = raw_cursor(connection)
        cursor.execute(_READ, [day, job_id, span.start, span.stop], prepare=False)
        for index, *fields, written_s in cursor:
            if index >= len(self.known):
                continue  # of a file that was appended since
            if self.first_row_s is None or written_s < self.first_row_s:
                self.first_row_s = written_s
            self.record(index, tuple(fields))
            if fields[0] == _FAILED and fields[7] == UNSTORABLE_CODE:
                self.unstorable[index] = fields[2]
        cursor.execute(_READ_COPIES, [job_id, span.start, span.stop], prepare=False)
        for index, original in cursor:
            if not self.originals:
                self.originals = array("i", [-1]) * len(self.known)
            if index < len(self.known):
                self.originals[index] = original


def outcome_fields(item: ItemOutcome) -> tuple[object, ...]:
    """Return the fields of an outcome as `RowFingerprints` reads them from its row."""
    return (
        item.outcome.value,
        item.status_code,
        item.attempt,
        item.input_tokens,
        item.output_tokens,
        item.cached_tokens,
        item.reasoning_tokens,
        item.error_code,
        len(item.body),
        item.body_key,
        None,
    )


def copy_fields(item: ItemOutcome) -> tuple[object, ...]:
    """Return the fields that the row of a copy of this outcome contains."""
    outcome, status_code, _, _, _, _, _, *rest, _ = outcome_fields(item)
    return (outcome, status_code, 0, 0, 0, 0, 0, *rest, item.index)


def close_fields(outcome: Outcome, code: str) -> tuple[object, ...]:
    """Return the fields of a row that a close made."""
    return (outcome.value, 0, 0, 0, 0, 0, 0, code, 0, None, None)


def differing(one: ItemFingerprints, other: ItemFingerprints) -> Iterable[int]:
    """Yield the indexes known to both whose fingerprints differ."""
    pairs = zip(one.known, other.known, one.prints, other.prints, strict=True)
    for index, (known, too, left, right) in enumerate(pairs):
        if known and too and left != right:
            yield index
