"""Reads the `custom_id` of items that no replica ever read from the input files, in item order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

import msgspec

from core.errors import MillraceError
from jobs.input.line_reader import Line, custom_id_of, input_lines
from storage.objects.errors import ObjectNotFoundError, ObjectStoreUnavailableError
from storage.objects.object_store import ObjectBlocks


class InputShorterError(MillraceError):
    """The input file holds fewer lines than its job has items."""

    code = "input_shorter"


OpenInput: TypeAlias = Callable[[int], ObjectBlocks]
"""Opens the input file at a byte offset. Raises what an object store raises."""

UNREADABLE: Final = ""
"""Stands for the id in a line that cannot be read: the job is finalised nevertheless."""


def read_custom_id(line: bytes | None) -> str:
    """Return the id in a line of an input file, or `UNREADABLE`."""
    try:
        return custom_id_of(line or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return UNREADABLE


class CustomIds:
    """Reads one input file in step with the rows; opens it when the first id is needed."""

    def __init__(self, open_input: OpenInput, *, input_bytes: int) -> None:
        """`input_bytes` bounds the length of a line: no line is longer than its file."""
        self._open_input = open_input
        self._line_bytes_max = max(1, input_bytes)
        self._blocks: ObjectBlocks | None = None
        self._lines: Iterator[Line] | None = None
        self._next_index = 0
        self._opened_index = -1  # of the next line when the file was last opened
        self._offset = 0  # start of the line read last
        self.unreadable_count = 0

    def at(self, item_index: int) -> str:
        """Return the id of an item, or `UNREADABLE`; indexes must rise from call to call.

        Minutes may pass between calls, and a store may close an idle reader: the file is then
        opened again at the same line. Raises InputShorterError, ObjectNotFoundError, and
        ObjectStoreUnavailableError when the second attempt reads nothing either.
        """
        while True:
            try:
                return self._read_on(item_index)
            except ObjectStoreUnavailableError:
                self.close()
                if self._next_index <= self._opened_index:
                    raise

    def close(self) -> None:
        """Close the input file; harmless when it was never opened."""
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
            next(lines, None)  # the line read last
        return lines

    def _custom_id(self, line: bytes | None) -> str:
        custom_id = read_custom_id(line)
        self.unreadable_count += custom_id == UNREADABLE
        return custom_id


class JobCustomIds:
    """The ids of a job's items across its input files.

    The id is `UNREADABLE` where a file is deleted or too short: the job is finalised nevertheless.
    """

    def __init__(self, files: Iterable[tuple[int, CustomIds]]) -> None:
        """`files`: in item order, each with the index of its first item."""
        self._later = deque(files)
        self._first_index = 0
        self._file: CustomIds | None = None  # None: its remaining ids are unreadable
        self._unreadable_count = 0

    @property
    def unreadable_count(self) -> int:
        """How many requested ids could not be read."""
        return self._unreadable_count + (self._file.unreadable_count if self._file else 0)

    def at(self, item_index: int) -> str:
        """Return the id of an item, or `UNREADABLE`; indexes must rise from call to call.

        Raises what an object store raises, except for deleted objects.
        """
        while self._later and self._later[0][0] <= item_index:
            self._finish_file()
            self._first_index, self._file = self._later.popleft()
        if self._file is not None:
            try:
                return self._file.at(item_index - self._first_index)
            except (InputShorterError, ObjectNotFoundError):
                self._finish_file()
        self._unreadable_count += 1
        return UNREADABLE

    def close(self) -> None:
        """Close the input files."""
        if self._file is not None:
            self._file.close()

    def _finish_file(self) -> None:
        self.close()
        self._unreadable_count = self.unreadable_count
        self._file = None
