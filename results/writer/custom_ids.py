"""The `custom_id` of items that no consumer ever read, from the input files, in item order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

import msgspec

from core.errors import MillraceError
from jobs.input.line_reader import Line, custom_id_of, input_lines
from storage.objects.errors import ObjectNotFoundError, ObjectStoreUnavailableError
from storage.objects.object_store import ObjectBlocks


class InputShorterError(MillraceError):
    """The input file holds fewer items than its job counted."""

    code = "input_shorter"


OpenInput: TypeAlias = Callable[[int], ObjectBlocks]
"""Opens the file at a byte offset. Raises what a store raises."""

UNREADABLE: Final = ""
"""In place of the id in a line that cannot be read: the other lines of its job must not wait."""


def id_in(line: bytes | None) -> str:
    """Return the id in a line of an input file, or `UNREADABLE`."""
    try:
        return custom_id_of(line or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return UNREADABLE


class CustomIds:
    """Reads one input file alongside the rows; opened only when a row asks."""

    def __init__(self, open_input: OpenInput, *, input_bytes: int) -> None:
        """`input_bytes` bounds a line, as no line is longer than its file."""
        self._open_input = open_input
        self._line_bytes_max = max(1, input_bytes)
        self._blocks: ObjectBlocks | None = None
        self._lines: Iterator[Line] | None = None
        self._next_index = 0
        self._opened_index = -1  # the next one when the file was opened last
        self._offset = 0  # where the last line that was read begins
        self.unreadable_count = 0  # lines that were asked for and are not what validation saw

    def at(self, item_index: int) -> str:
        """Return the id of an item, or `UNREADABLE`; indexes only grow from call to call.

        Rows that ask may be minutes apart, and a store may cut a reader that pauses: the file is
        opened again where it was left. Raises InputShorterError, ObjectNotFoundError and, when that
        does not help, ObjectStoreUnavailableError.
        """
        while True:
            try:
                return self._read_on(item_index)
            except ObjectStoreUnavailableError:
                self.close()
                if self._next_index <= self._opened_index:
                    raise

    def close(self) -> None:
        """Give the input file back; harmless when it was never opened."""
        self._lines = None
        if self._blocks is not None:
            self._blocks.close()

    def _read_on(self, item_index: int) -> str:
        lines = self._lines or self._opened()
        for _, self._offset, line in lines:
            self._next_index += 1
            if self._next_index > item_index:
                return self._custom_id(line)
        raise InputShorterError(index=item_index)

    def _opened(self) -> Iterator[Line]:
        self._opened_index = self._next_index
        self._blocks = self._open_input(self._offset)
        self._lines = lines = input_lines(
            self._blocks, line_bytes_max=self._line_bytes_max, offset=self._offset
        )
        if self._next_index:
            next(lines, None)  # the last one that was read
        return lines

    def _custom_id(self, line: bytes | None) -> str:
        custom_id = id_in(line)
        self.unreadable_count += custom_id == UNREADABLE
        return custom_id


class JobCustomIds:
    """The ids of a job's items, whichever of its files they are in.

    What a file that is gone or too short does not tell is `UNREADABLE`: its job ends nevertheless.
    """

    def __init__(self, files: Iterable[tuple[int, CustomIds]]) -> None:
        """`files` are in the order of their items, each with the index of its first one."""
        self._later = deque(files)
        self._first_index = 0
        self._file: CustomIds | None = None  # None: the rest of it is gone
        self._unreadable_count = 0

    @property
    def unreadable_count(self) -> int:
        """How many ids were asked for that no file tells."""
        return self._unreadable_count + (self._file.unreadable_count if self._file else 0)

    def at(self, item_index: int) -> str:
        """Return the id of an item, or `UNREADABLE`; indexes only grow from call to call.

        Raises what a store raises, but for objects that are gone.
        """
        while self._later and self._later[0][0] <= item_index:
            self._leave()
            self._first_index, self._file = self._later.popleft()
        if self._file is not None:
            try:
                return self._file.at(item_index - self._first_index)
            except (InputShorterError, ObjectNotFoundError):
                self._leave()
        self._unreadable_count += 1
        return UNREADABLE

    def close(self) -> None:
        """Give the input files back."""
        if self._file is not None:
            self._file.close()

    def _leave(self) -> None:
        self.close()
        self._unreadable_count = self.unreadable_count
        self._file = None
