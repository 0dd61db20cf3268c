"""Reads the `custom_id` of items that no replica ever read, from the input files of their job.

Reading continues from the last item, or from a checkpoint near the next one: offsets of lines are
recorded while reading, so a late item costs a part of the file and not all before it.
"""

import sys
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

import msgspec

from core.errors import MillraceError
from jobs.input.input_files import InputFile, InputFiles
from jobs.input.line_reader import Line, custom_id_of, input_lines
from storage.objects.errors import ObjectNotFoundError, ObjectStoreUnavailableError
from storage.objects.object_store import ObjectBlocks, ObjectReader

_CHECKPOINT_BYTES: Final = 256 * 1024  # distance of two checkpoints, at least
_CHECKPOINTS_MAX: Final = 4096  # per file

SKIPPED_BYTES_MAX: Final = 4 * 1024 * 1024
"""Memory for ids that were skipped and may be read later: at least 20,000 of usual length."""

_ENTRY_BYTES: Final = 100  # overhead of an id, roughly

UNREADABLE: Final = ""
"""Stands for the id in a line that cannot be read: the job is finalised nevertheless."""


class InputShorterError(MillraceError):
    """The input file holds fewer lines than its job has items."""

    code = "input_shorter"


def read_custom_id(line: bytes | None) -> str:
    """Return the id in a line of an input file, or `UNREADABLE`."""
    try:
        return custom_id_of(line or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return UNREADABLE


class InputCustomIds:
    """Reads the input files of one job. Not thread-safe. Close it."""

    def __init__(
        self,
        store: ObjectReader,
        files: InputFiles,
        *,
        keeps_skipped: bool = False,
        is_patient: bool = False,
    ) -> None:
        """Open no file yet. `keeps_skipped`: remember ids of items that are skipped.

        `is_patient`: open a file again as long as each attempt reads further than the one before.
        """
        self._store, self._files = store, files
        self._keeps_skipped, self._is_patient = keeps_skipped, is_patient
        self._checkpoints: dict[int, list[tuple[int, int]]] = {}
        """By the first index of a file: rising item indexes and the offsets of their lines."""
        self._skipped: dict[int, str] = {}  # the oldest first
        self._skipped_bytes = 0
        self._file: InputFile | None = None  # the open one
        self._blocks: ObjectBlocks | None = None
        self._lines: Iterator[Line] = iter(())
        self._next = 0  # index of the next line
        self._offset = 0  # of the line read last
        self._furthest = -1  # highest index that was skipped or returned
        self._reached = -1  # highest index whose line was read

    def at(self, index: int) -> str:
        """Return the id of an item, `UNREADABLE` if its line is; fastest for rising indexes.

        Minutes may pass between calls, and a store may close an idle reader: the file is then
        opened again. Raises InputShorterError, ObjectNotFoundError, ObjectStoreUnavailableError.
        """
        known = self._skipped.pop(index, None)
        if known is not None:
            self._skipped_bytes -= _size(known)
            return known
        while True:
            was_open, reached = self._file is not None, self._reached
            try:
                return self._find(index)
            except ObjectStoreUnavailableError:
                self._record_last_line()
                self.close()
                if not was_open and not (self._is_patient and self._reached > reached):
                    raise
            except BaseException:  # whatever failed, the position in the file is unknown
                self.close()
                raise

    def close(self) -> None:
        """Close the file; harmless when it was never opened."""
        self._file = None
        if self._blocks is not None:
            self._blocks.close()
            self._blocks = None

    def _find(self, index: int) -> str:
        self._seek(self._files.file_at(index), index)
        for here, line in self._read():
            if here == index:
                self._furthest = max(self._furthest, index)
                return read_custom_id(line)
            self._skip(here, line)
        raise InputShorterError(index=index)

    def _seek(self, file: InputFile, index: int) -> None:
        """Move to the nearest checkpoint before the item, unless the present line is nearer."""
        if file is self._file and index == self._next:
            return
        checkpoints = self._checkpoints.setdefault(file.first_index, [(file.first_index, 0)])
        first, offset = checkpoints[bisect_right(checkpoints, index, key=lambda c: c[0]) - 1]
        if file is self._file and first <= self._next <= index:
            return
        self._finish(file)
        self.close()
        size = file.size_bytes
        self._blocks = self._store.read(file.key, offset=offset)
        self._lines = input_lines(self._blocks, line_bytes_max=max(1, size), offset=offset)
        self._file, self._next, self._offset = file, first, offset

    def _finish(self, following: InputFile) -> None:
        """Skip a short rest of the file before `following`: results come nearly in order."""
        file = self._file
        if file is None or following.first_index <= file.first_index or not self._keeps_skipped:
            return
        if file.size_bytes - self._offset <= _CHECKPOINT_BYTES:
            for here, line in self._read():
                self._skip(here, line)

    def _read(self) -> Iterator[tuple[int, bytes | None]]:
        """Yield the next lines of the open file with their indexes, and record checkpoints."""
        assert self._file is not None
        checkpoints = self._checkpoints[self._file.first_index]
        step = max(_CHECKPOINT_BYTES, self._file.size_bytes // _CHECKPOINTS_MAX)
        for _, offset, line in self._lines:
            here, self._next, self._offset = self._next, self._next + 1, offset
            self._reached = max(self._reached, here)
            if offset >= checkpoints[-1][1] + step:
                checkpoints.append((here, offset))
            yield here, line

    def _record_last_line(self) -> None:
        """Add a checkpoint at the line read last, where the next attempt continues."""
        if self._file is not None:
            checkpoints = self._checkpoints[self._file.first_index]
            if self._offset > checkpoints[-1][1]:
                checkpoints.append((self._next - 1, self._offset))

    def _skip(self, index: int, line: bytes | None) -> None:
        """Remember a skipped id, once."""
        if not self._keeps_skipped or index <= self._furthest:
            return
        self._furthest = index
        self._skipped[index] = custom_id = read_custom_id(line)
        self._skipped_bytes += _size(custom_id)
        while self._skipped_bytes > SKIPPED_BYTES_MAX:
            self._skipped_bytes -= _size(self._skipped.pop(next(iter(self._skipped))))


class CompleteCustomIds(InputCustomIds):
    """The ids of all items of a job that is finalised; indexes rise from call to call.

    The id is `UNREADABLE` where a file is deleted or too short: the job is finalised nevertheless.
    """

    def __init__(self, store: ObjectReader, files: InputFiles) -> None:
        super().__init__(store, files, is_patient=True)
        self._ended: InputFile | None = None  # its remaining ids are unreadable
        self.unreadable_count = 0
        """How many requested ids could not be read."""

    def at(self, index: int) -> str:
        """Return the id of an item, or `UNREADABLE`. Raises ObjectStoreUnavailableError."""
        custom_id, file = UNREADABLE, self._files.file_at(index)
        if file is not self._ended:
            try:
                custom_id = super().at(index)
            except (InputShorterError, ObjectNotFoundError):
                self._ended = file
        self.unreadable_count += custom_id == UNREADABLE
        return custom_id


def _size(custom_id: str) -> int:
    return sys.getsizeof(custom_id) + _ENTRY_BYTES
