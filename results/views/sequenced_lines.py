r"""Renders results as the lines of output and error files, each with its sequence.

{"id":"batch_req_…","custom_id":…,"response":{…},"error":null,"sequence":17}
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from typing import Final, TypeAlias

from results.finaliser.item_rows import RowDecrypter
from results.finaliser.output_lines import (
    AFTER_BODY,
    ANSWER_GONE,
    ItemRow,
    LineTemplate,
    belongs_to_output,
    error_value,
    one_line,
)
from results.views.item_custom_ids import ItemCustomIds
from results.views.result_file_lines import ResultFileLines
from results.views.result_sequence import SequencedRow
from results.views.result_sources import ResultSource, StoredFile
from storage.objects.errors import ObjectNotFoundError
from storage.objects.object_store import ObjectStore

Frame: TypeAlias = Callable[[int], tuple[bytes, bytes]]
"""Returns the text before and after the line of a sequence."""

BLOCK_BYTES: Final = 64 * 1024

_TAIL_BYTES: Final = 2  # a line of a file ends with a brace and a newline
_GONE: Final = b'null},"error":' + error_value(ANSWER_GONE) + b"}\n"


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
            row.item_index for _, row in rows if row.custom_id is None
        )
        pending: list[bytes] = []
        size = 0
        for sequence, found in rows:
            if pending and found.body_key is not None:  # reading the object may fail: yield first
                yield b"".join(pending)
                pending, size = [], 0
            row = found if self._decrypter is None else self._decrypted(found)
            before, after = self._frame(sequence)
            custom_id = custom_ids[row.item_index] if row.custom_id is None else row.custom_id
            tail = b',"sequence":%d}' % sequence + after
            if row.body_key is not None and row.status_code:
                yield from self._large(row, custom_id, before, tail)
            else:
                *parts, last = self._template.line(row, custom_id)
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
        self, row: ItemRow, custom_id: str | None, before: bytes, tail: bytes
    ) -> Iterator[bytes]:
        """Yield a line whose body is an object, or in the file of a terminal job."""
        file = self._source.output if belongs_to_output(row) else self._source.error
        if self._source.is_terminal:
            yield from self._from_file(row, file, custom_id, (before, tail))
            return
        assert row.body_key is not None
        with self._store.read(row.body_key) as blocks:
            yield before + self._template.before_body(row, custom_id)
            yield from map(one_line, blocks)
        yield AFTER_BODY[:-_TAIL_BYTES] + tail

    def _from_file(
        self,
        row: ItemRow,
        file: StoredFile | None,
        custom_id: str | None,
        frame: tuple[bytes, bytes],
    ) -> Iterator[bytes]:
        before, tail = frame
        found = None
        if file is not None:
            lines = ResultFileLines(self._store, file, self._source.job_id)
            with suppress(ObjectNotFoundError):  # deleted since the source was read
                found = lines.find_line(row.item_index)
        if file is None or found is None:
            yield before + self._template.before_body(row, custom_id) + _GONE[:-_TAIL_BYTES] + tail
            return
        offset, length = found
        with self._store.read(file.key, offset=offset, length=length - _TAIL_BYTES) as blocks:
            if before:
                yield before
            yield from blocks
        yield tail
