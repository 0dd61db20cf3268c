"""Reads results in the order in which they were written and renders them as lines.

The writer stores the indexes of the rows that it inserted, per job and commit; the sequence of an
item is its rank, from 1. So the order never changes, has no gaps and costs nothing per item, and a
client can continue after any sequence. Lines are those of output and error files with a sequence:

{"id":"batch_req_…","custom_id":…,"response":{…},"error":null,"sequence":17}
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

import sqlalchemy as sa

from results.finaliser.item_rows import RowDecrypter
from results.finaliser.line_provenance import read_line_tags
from results.finaliser.output_lines import (
    ANSWER_GONE,
    ItemRow,
    LineTemplate,
    after_body,
    belongs_to_output,
    error_value,
    one_line,
)
from results.views.item_custom_ids import ItemCustomIds
from results.views.result_file_lines import ResultFileLines
from results.views.result_sources import ResultSource, StoredFile
from storage.objects.errors import ObjectNotFoundError
from storage.objects.object_store import ObjectStore
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

Frame: TypeAlias = Callable[[int], tuple[bytes, bytes]]
"""Returns the text before and after the line of a sequence."""

BLOCK_BYTES: Final = 64 * 1024

_TAIL_BYTES: Final = 2  # a line of a file ends with a brace and a newline
_GONE: Final = b'null},"error":' + error_value(ANSWER_GONE)


class SequencedRow(NamedTuple):
    """An item row and its sequence."""

    sequence: int
    row: ItemRow
    tag: bytes = b""  # the last field of its line before the sequence


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
    found = [(sequence, ItemRow._make(row)) for sequence, *row in cursor]
    if all(row.provenance is None for _, row in found):
        return [SequencedRow(*one) for one in found]
    tags = read_line_tags(connection, job_id)
    return [
        SequencedRow(sequence, row, tags.get(row.provenance or 0, b"")) for sequence, row in found
    ]


def sequence_of(connection: sa.Connection, job_id: UUID, item_index: int) -> int | None:
    """Return the sequence of an item that has its row. Reads the complete order of the job."""
    cursor = raw_cursor(connection)
    cursor.execute(FIND_SEQUENCE, [item_index, job_id, item_index], prepare=False)
    found = cursor.fetchone()
    return None if found is None else int(found[0])


def jsonl(_: int) -> tuple[bytes, bytes]:
    """Frame lines as JSON Lines."""
    return b"", b"\n"


def server_sent(sequence: int) -> tuple[bytes, bytes]:
    """Frame lines as server-sent events whose id is the sequence."""
    return b"id: %d\ndata: " % sequence, b"\n\n"


class SequencedLines:
    """Renders the results of one batch. Not thread-safe. Close it."""

    def __init__(self, store: ObjectStore, source: ResultSource, frame: Frame) -> None:
        self._store, self._source, self._frame = store, source, frame
        self._template = LineTemplate(source.job_id)
        self._custom_ids = ItemCustomIds(store, source)
        is_encrypted = source.job.zero_retention
        self._decrypter = RowDecrypter(store, source.job_id) if is_encrypted else None
        self.after = 0
        """The sequence of the last line that was yielded completely."""

    def blocks(self, rows: Iterable[SequencedRow]) -> Generator[bytes, None, None]:
        """Yield the lines of `rows`, several in one block.

        Raises ObjectStoreUnavailableError, and ObjectNotFoundError when a large answer has moved to
        a file:
        read the source again and continue after `after`.
        """
        if self._decrypter is not None:  # loads the key again, which may have been destroyed
            self._decrypter = RowDecrypter(self._store, self._source.job_id)
        rows = list(rows)
        custom_ids = self._custom_ids.by_index(
            row.item_index for _, row, _ in rows if row.custom_id is None
        )
        pending: list[bytes] = []
        size = 0
        for sequence, found, tag in rows:
            if pending and found.body_key is not None:  # reading the object may fail: yield first
                yield b"".join(pending)
                pending, size = [], 0
            row = found if self._decrypter is None else self._decrypted(found)
            before, after = self._frame(sequence)
            custom_id = custom_ids[row.item_index] if row.custom_id is None else row.custom_id
            tail = b',"sequence":%d}' % sequence + after
            if row.body_key is not None and row.status_code:
                yield from self._large(row, custom_id, (before, tail), tag)
            else:
                *parts, last = self._template.line(row, custom_id, tag)
                pending += (before, *parts, last[:-_TAIL_BYTES], tail)
                size += sum(map(len, parts)) + len(last)
            self.after = sequence
            if size >= BLOCK_BYTES:
                yield b"".join(pending)
                pending, size = [], 0
        if pending:
            yield b"".join(pending)

    def close(self) -> None:
        """Close the files."""
        self._custom_ids.close()

    def _decrypted(self, row: ItemRow) -> ItemRow:
        """Return the row decrypted; the file of a terminal job has its large answers in clear."""
        assert self._decrypter is not None
        decrypted = self._decrypter.decrypt(row, with_objects=not self._source.is_terminal)
        if decrypted.body_key is not None and not self._source.is_terminal:
            raise ObjectNotFoundError  # the answer has moved to a file meanwhile
        return decrypted

    def _large(
        self, row: ItemRow, custom_id: str | None, frame: tuple[bytes, bytes], tag: bytes
    ) -> Iterator[bytes]:
        """Yield a line whose body is an object, or in the file of a terminal job."""
        before, tail = frame
        file = self._source.output if belongs_to_output(row) else self._source.error
        if self._source.is_terminal:
            yield from self._from_file(row, file, custom_id, (before, tag, tail))
            return
        assert row.body_key is not None
        with self._store.read(row.body_key) as blocks:
            yield before + self._template.before_body(row, custom_id)
            yield from map(one_line, blocks)
        yield after_body(tag)[:-_TAIL_BYTES] + tail

    def _from_file(
        self,
        row: ItemRow,
        file: StoredFile | None,
        custom_id: str | None,
        frame: tuple[bytes, bytes, bytes],
    ) -> Iterator[bytes]:
        before, tag, tail = frame
        found = None
        if file is not None:
            lines = ResultFileLines(self._store, file, self._source.job_id)
            with suppress(ObjectNotFoundError):  # deleted since the source was read
                found = lines.find_line(row.item_index)
        if file is None or found is None:
            yield before + self._template.before_body(row, custom_id) + _GONE + tag + tail
            return
        offset, length = found
        with self._store.read(file.key, offset=offset, length=length - _TAIL_BYTES) as blocks:
            if before:
                yield before
            yield from blocks
        yield tail
