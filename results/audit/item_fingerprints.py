"""What rows and the log say of each item, in a few bytes an item, so that millions compare."""

from array import array
from collections.abc import Iterable
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from core.outcomes import Outcome
from results.writer.item_writer import UNSTORABLE_CODE
from storage.postgres.engines import raw_cursor
from topics.records.records import ItemOutcome

_FAILED: Final = Outcome.FAILED.value

_READ: Final = """
SELECT item_index, outcome, status_code, attempt, input_tokens, output_tokens, cached_tokens,
    reasoning_tokens, error_code, coalesce(octet_length(body), 0), body_key, copied_from,
    extract(epoch FROM finished_at)::float8
FROM items
WHERE job_day = %b::int AND job_id = %b::uuid
    AND item_index >= %b::int AND item_index < %b::int
"""


_READ_COPIES: Final = """
SELECT item_index, original_index FROM item_copies
WHERE job_id = %b::uuid AND item_index >= %b::int AND item_index < %b::int
"""


class ItemFingerprints:
    """A fingerprint of what is known of each item of a job. Good in one process only."""

    def __init__(self, total_count: int) -> None:
        """Nothing is known yet."""
        self.known = bytearray(total_count)
        self.prints = array("q", bytes(8 * total_count))

    def record(self, index: int, said: tuple[object, ...]) -> None:
        """Keep what was said of an item."""
        self.known[index] = 1
        self.prints[index] = hash(said)


class RowFingerprints(ItemFingerprints):
    """What the rows of a job say."""

    def __init__(self, total_count: int) -> None:
        """No row was read yet."""
        super().__init__(total_count)
        self.unstorable: dict[int, int] = {}
        """Items whose result Postgres refused, and the execution that gave it: the log has what no
        row can hold."""
        self.originals = array("i")
        """The original of each item that is a copy, else -1; empty when there are no copies."""
        self.first_row_s: float | None = None
        """When the first of them was written."""

    def read(self, connection: sa.Connection, job: tuple[UUID, int], span: range) -> None:
        """Take in the rows of a span of indexes; `job` is its id and day."""
        job_id, day = job
        cursor = raw_cursor(connection)
        cursor.execute(_READ, [day, job_id, span.start, span.stop], prepare=False)
        for index, *said, written_s in cursor:
            if index >= len(self.known):
                continue  # of a file that was appended meanwhile
            if self.first_row_s is None or written_s < self.first_row_s:
                self.first_row_s = written_s
            self.record(index, tuple(said))
            if said[0] == _FAILED and said[7] == UNSTORABLE_CODE:
                self.unstorable[index] = said[2]
        cursor.execute(_READ_COPIES, [job_id, span.start, span.stop], prepare=False)
        for index, original in cursor:
            if not self.originals:
                self.originals = array("i", [-1]) * len(self.known)
            if index < len(self.known):
                self.originals[index] = original


def outcome_fields(item: ItemOutcome) -> tuple[object, ...]:
    """Return what an outcome says, as `RowFingerprints` reads it from its row."""
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
    """Return what the row of a copy says that took over this outcome."""
    outcome, status_code, _, _, _, _, _, *rest, _ = outcome_fields(item)
    return (outcome, status_code, 0, 0, 0, 0, 0, *rest, item.index)


def close_fields(outcome: Outcome, code: str) -> tuple[object, ...]:
    """Return what a row says that a close made."""
    return (outcome.value, 0, 0, 0, 0, 0, 0, code, 0, None, None)


def differing(one: ItemFingerprints, other: ItemFingerprints) -> Iterable[int]:
    """Yield the indexes of which both know something, and not the same."""
    pairs = zip(one.known, other.known, one.prints, other.prints, strict=True)
    for index, (known, too, left, right) in enumerate(pairs):
        if known and too and left != right:
            yield index
