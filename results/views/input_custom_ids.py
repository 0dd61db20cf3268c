"""The `custom_id` of any item, from the input files of its job.

Files are read on from where the last item was, or from a place near the next one: starts of lines
are noted on the way, so an item that comes late costs a stretch of the file and not all before it.
"""

import sys
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from jobs.input.line_reader import Line, input_lines
from results.views.result_sources import InputPart, ResultSource
from results.writer.custom_ids import InputShorterError, id_in
from storage.objects.errors import ObjectStoreAwayError
from storage.objects.object_store import Blocks, Reads

_STEP_BYTES: Final = 256 * 1024  # between two places, at least
_PLACES_MAX: Final = 4096  # of one file

PASSED_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of names that were passed and not asked for yet: 20,000 and more of usual length."""

_ENTRY_BYTES: Final = 100  # what a name takes beside its text, roughly


class InputCustomIds:
    """Reads the input files of one job. One thread at a time uses it. Close it."""

    def __init__(self, store: Reads, source: ResultSource, *, keeps_passed: bool) -> None:
        """Open nothing yet. `keeps_passed`: names of items that are passed will be asked for."""
        self._store, self._source, self._keeps_passed = store, source, keeps_passed
        self._places: dict[int, list[tuple[int, int]]] = {}
        """By the first index of a file, item indexes and the offsets of their lines, rising."""
        self._passed: dict[int, str] = {}  # the oldest first
        self._passed_bytes = 0
        self._part: InputPart | None = None  # that is open
        self._blocks: Blocks | None = None
        self._lines: Iterator[Line] = iter(())
        self._next = 0  # index of the next line
        self._offset = 0  # of the line before
        self._furthest = -1  # index that was passed or asked for

    def at(self, index: int) -> str:
        """Return the id of an item, `UNREADABLE` if its line is; best asked in rising order.

        Raises InputShorterError, ObjectMissingError, ObjectStoreAwayError.
        """
        known = self._passed.pop(index, None)
        if known is not None:
            self._passed_bytes -= _size(known)
            return known
        was_open = self._part is not None
        try:
            return self._found(index)
        except ObjectStoreAwayError:  # a store may cut a reader that pauses
            self.close()
            if not was_open:
                raise
        except BaseException:
            self.close()
            raise
        return self.at(index)

    def close(self) -> None:
        """Give the file back; harmless when it was never opened."""
        self._part = None
        if self._blocks is not None:
            self._blocks.close()
            self._blocks = None

    def _found(self, index: int) -> str:
        self._go_near(part_of(self._source, index), index)
        for here, line in self._read():
            if here == index:
                self._furthest = max(self._furthest, index)
                return id_in(line)
            self._pass(here, line)
        raise InputShorterError(index=index)

    def _go_near(self, part: InputPart, index: int) -> None:
        """Be at a line not far before the item, or where the last one was if that is nearer."""
        places = self._places.setdefault(part.first_index, [(part.first_index, 0)])
        first, offset = places[bisect_right(places, index, key=lambda place: place[0]) - 1]
        if part is self._part and first <= self._next <= index:
            return
        self._finish(part)
        self.close()
        size = part.file.size_bytes
        self._blocks = self._store.read(part.file.key, offset=offset)
        self._lines = input_lines(self._blocks, line_bytes_max=max(1, size), offset=offset)
        self._part, self._next, self._offset = part, first, offset

    def _finish(self, following: InputPart) -> None:
        """Pass the little that is left before `following`: results come nearly in order."""
        part = self._part
        if part is None or following.first_index <= part.first_index or not self._keeps_passed:
            return
        if part.file.size_bytes - self._offset <= _STEP_BYTES:
            for here, line in self._read():
                self._pass(here, line)

    def _read(self) -> Iterator[tuple[int, bytes | None]]:
        """Yield the next lines of the open file with their indexes, and note places."""
        assert self._part is not None
        places = self._places[self._part.first_index]
        step = max(_STEP_BYTES, self._part.file.size_bytes // _PLACES_MAX)
        for _, offset, line in self._lines:
            here, self._next, self._offset = self._next, self._next + 1, offset
            if offset >= places[-1][1] + step:
                places.append((here, offset))
            yield here, line

    def _pass(self, index: int, line: bytes | None) -> None:
        """Keep a name; one that was read before was kept then."""
        if not self._keeps_passed or index <= self._furthest:
            return
        self._furthest = index
        self._passed[index] = name = id_in(line)
        self._passed_bytes += _size(name)
        while self._passed_bytes > PASSED_BYTES_MAX:
            self._passed_bytes -= _size(self._passed.pop(next(iter(self._passed))))


def part_of(source: ResultSource, index: int) -> InputPart:
    """Return the input file that holds an item."""
    return max(
        (part for part in source.inputs if part.first_index <= index),
        key=lambda part: part.first_index,
    )


def _size(name: str) -> int:
    return sys.getsizeof(name) + _ENTRY_BYTES
