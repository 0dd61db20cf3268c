"""Reads the `custom_id` of any item from the input files of its job.

Reading continues from the last item, or from a checkpoint near the next one: offsets of lines are
recorded while reading, so a late item costs a part of the file and not all before it.
"""

import sys
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from jobs.input.line_reader import Line, input_lines
from results.views.result_sources import InputPart, ResultSource
from results.writer.custom_ids import InputShorterError, read_custom_id
from storage.objects.errors import ObjectStoreUnavailableError
from storage.objects.object_store import ObjectBlocks, ObjectReader

_CHECKPOINT_BYTES: Final = 256 * 1024  # distance of two checkpoints, at least
_CHECKPOINTS_MAX: Final = 4096  # per file

SKIPPED_BYTES_MAX: Final = 4 * 1024 * 1024
"""Memory for ids that were skipped and may be read later: at least 20,000 of usual length."""

_ENTRY_BYTES: Final = 100  # overhead of an id, roughly


class InputCustomIds:
    """Reads the input files of one job. Not thread-safe. Close it."""

    def __init__(self, store: ObjectReader, source: ResultSource, *, keeps_skipped: bool) -> None:
        """Open no file yet. `keeps_skipped`: remember ids of items that are skipped."""
        self._store, self._source, self._keeps_skipped = store, source, keeps_skipped
        self._checkpoints: dict[int, list[tuple[int, int]]] = {}
        """By the first index of a file: rising item indexes and the offsets of their lines."""
        self._skipped: dict[int, str] = {}  # the oldest first
        self._skipped_bytes = 0
        self._part: InputPart | None = None  # the open file
        self._blocks: ObjectBlocks | None = None
        self._lines: Iterator[Line] = iter(())
        self._next = 0  # index of the next line
        self._offset = 0  # of the line read last
        self._furthest = -1  # highest index that was skipped or returned

    def at(self, index: int) -> str:
        """Return the id of an item, `UNREADABLE` if its line is; fastest for rising indexes.

        Raises InputShorterError, ObjectNotFoundError, ObjectStoreUnavailableError.
        """
        known = self._skipped.pop(index, None)
        if known is not None:
            self._skipped_bytes -= _size(known)
            return known
        was_open = self._part is not None
        try:
            return self._find(index)
        except ObjectStoreUnavailableError:  # a store may close an idle reader
            self.close()
            if not was_open:
                raise
        except BaseException:
            self.close()
            raise
        return self.at(index)

    def close(self) -> None:
        """Close the file; harmless when it was never opened."""
        self._part = None
        if self._blocks is not None:
            self._blocks.close()
            self._blocks = None

    def _find(self, index: int) -> str:
        self._seek(input_part_of(self._source, index), index)
        for here, line in self._read():
            if here == index:
                self._furthest = max(self._furthest, index)
                return read_custom_id(line)
            self._skip(here, line)
        raise InputShorterError(index=index)

    def _seek(self, part: InputPart, index: int) -> None:
        """Move to the nearest checkpoint before the item, unless the present line is nearer."""
        checkpoints = self._checkpoints.setdefault(part.first_index, [(part.first_index, 0)])
        first, offset = checkpoints[bisect_right(checkpoints, index, key=lambda c: c[0]) - 1]
        if part is self._part and first <= self._next <= index:
            return
        self._finish(part)
        self.close()
        size = part.file.size_bytes
        self._blocks = self._store.read(part.file.key, offset=offset)
        self._lines = input_lines(self._blocks, line_bytes_max=max(1, size), offset=offset)
        self._part, self._next, self._offset = part, first, offset

    def _finish(self, following: InputPart) -> None:
        """Skip a short rest of the file before `following`: results come nearly in order."""
        part = self._part
        if part is None or following.first_index <= part.first_index or not self._keeps_skipped:
            return
        if part.file.size_bytes - self._offset <= _CHECKPOINT_BYTES:
            for here, line in self._read():
                self._skip(here, line)

    def _read(self) -> Iterator[tuple[int, bytes | None]]:
        """Yield the next lines of the open file with their indexes, and record checkpoints."""
        assert self._part is not None
        checkpoints = self._checkpoints[self._part.first_index]
        step = max(_CHECKPOINT_BYTES, self._part.file.size_bytes // _CHECKPOINTS_MAX)
        for _, offset, line in self._lines:
            here, self._next, self._offset = self._next, self._next + 1, offset
            if offset >= checkpoints[-1][1] + step:
                checkpoints.append((here, offset))
            yield here, line

    def _skip(self, index: int, line: bytes | None) -> None:
        """Remember a skipped id, once."""
        if not self._keeps_skipped or index <= self._furthest:
            return
        self._furthest = index
        self._skipped[index] = custom_id = read_custom_id(line)
        self._skipped_bytes += _size(custom_id)
        while self._skipped_bytes > SKIPPED_BYTES_MAX:
            self._skipped_bytes -= _size(self._skipped.pop(next(iter(self._skipped))))


def input_part_of(source: ResultSource, index: int) -> InputPart:
    """Return the input file that contains an item."""
    return max(
        (part for part in source.inputs if part.first_index <= index),
        key=lambda part: part.first_index,
    )


def _size(custom_id: str) -> int:
    return sys.getsizeof(custom_id) + _ENTRY_BYTES
