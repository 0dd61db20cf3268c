r"""Results as lines: those of the output and error files, each with its sequence.

{"id":"batch_req_…","custom_id":…,"response":{…},"error":null,"sequence":17}
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from typing import Final, TypeAlias

from results.finaliser.output_lines import ItemRow, LineTemplate, belongs_to_output, one_line
from results.finaliser.row_decryption import RowDecrypter
from results.views.item_custom_ids import ItemCustomIds
from results.views.result_file_lines import ResultFileLines
from results.views.result_sequence import SequencedRow
from results.views.result_sources import ResultSource, StoredFile
from storage.objects.errors import ObjectMissingError
from storage.objects.object_store import ObjectStore

Frame: TypeAlias = Callable[[int], tuple[bytes, bytes]]
"""Returns what stands before and behind the line of a sequence."""

BLOCK_BYTES: Final = 64 * 1024

_TAIL_BYTES: Final = 2  # a line of a file ends with a brace and a newline
_ANSWERED: Final = b'},"error":null}\n'
_GONE: Final = (
    b'null},"error":{"code":"answer_gone","message":"This answer is not stored any more."}}\n'
)


def jsonl(_: int) -> tuple[bytes, bytes]:
    """Frame lines as JSON Lines."""
    return b"", b"\n"


def server_sent(sequence: int) -> tuple[bytes, bytes]:
    """Frame lines as server-sent events whose id is the sequence."""
    return b"id: %d\ndata: " % sequence, b"\n\n"


class SequencedLines:
    """Renders the results of one batch; one thread at a time uses it. Close it."""

    def __init__(self, store: ObjectStore, source: ResultSource, frame: Frame) -> None:
        """Open nothing yet."""
        self._store, self._source, self._frame = store, source, frame
        self._template = LineTemplate(source.job_id)
        self._names = ItemCustomIds(store, source)
        is_encrypted = source.job.zero_retention
        self._opener = RowDecrypter(store, source.job_id) if is_encrypted else None
        self.after = 0
        """The sequence of the last line that was given out whole."""

    def blocks(self, rows: Iterable[SequencedRow]) -> Generator[bytes, None, None]:
        """Yield the lines of `rows`, several in one block.

        Raises ObjectStoreAwayError, and ObjectMissingError when a large answer has moved: read the
        source again and go on behind `after`.
        """
        if self._opener is not None:  # so that a key that was destroyed ends what it encrypted
            self._opener = RowDecrypter(self._store, self._source.job_id)
        rows = list(rows)
        names = self._names.of(row.item_index for _, row in rows if row.custom_id is None)
        held: list[bytes] = []
        size = 0
        for sequence, found in rows:
            if held and found.body_key is not None:  # looking for it may fail: give these out first
                yield b"".join(held)
                held, size = [], 0
            row = found if self._opener is None else self._opened(found)
            before, behind = self._frame(sequence)
            custom_id = names[row.item_index] if row.custom_id is None else row.custom_id
            tail = b',"sequence":%d}' % sequence + behind
            if row.body_key is not None and row.status_code:
                yield from self._large(row, custom_id, before, tail)
            else:
                *parts, last = self._template.line(row, custom_id)
                held += (before, *parts, last[:-_TAIL_BYTES], tail)
                size += sum(map(len, parts)) + len(last)
            self.after = sequence
            if size >= BLOCK_BYTES:
                yield b"".join(held)
                held, size = [], 0
        if held:
            yield b"".join(held)

    def close(self) -> None:
        """Give the files back."""
        self._names.close()

    def _opened(self, row: ItemRow) -> ItemRow:
        """Return the row in clear. A large answer is so in its file, once the job has ended."""
        assert self._opener is not None
        opened = self._opener.decrypt(row, with_objects=not self._source.is_terminal)
        if opened.body_key is not None and not self._source.is_terminal:
            raise ObjectMissingError  # it has moved meanwhile
        return opened

    def _large(
        self, row: ItemRow, custom_id: str | None, before: bytes, tail: bytes
    ) -> Iterator[bytes]:
        """Yield a line whose body is an object, or, once the job has ended, in its file."""
        file = self._source.output if belongs_to_output(row) else self._source.error
        if self._source.is_terminal:
            yield from self._from_file(row, file, custom_id, (before, tail))
            return
        assert row.body_key is not None
        with self._store.read(row.body_key) as blocks:
            yield before + self._template.opening(row, custom_id)
            yield from map(one_line, blocks)
        yield _ANSWERED[:-_TAIL_BYTES] + tail

    def _from_file(
        self,
        row: ItemRow,
        file: StoredFile | None,
        custom_id: str | None,
        frame: tuple[bytes, bytes],
    ) -> Iterator[bytes]:
        before, tail = frame
        place = None
        if file is not None:
            lines = ResultFileLines(self._store, file, self._source.job_id)
            with suppress(ObjectMissingError):  # deleted since the source was read
                place = lines.find_line(row.item_index)
        if file is None or place is None:
            yield before + self._template.opening(row, custom_id) + _GONE[:-_TAIL_BYTES] + tail
            return
        offset, length = place
        with self._store.read(file.key, offset=offset, length=length - _TAIL_BYTES) as blocks:
            if before:
                yield before
            yield from blocks
        yield tail
