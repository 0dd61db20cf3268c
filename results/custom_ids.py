"""The `custom_id` of items that no consumer ever read, from the input file, in item order."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

import msgspec

from core.errors import MillraceError
from jobs.input_lines import Line, custom_id_of, input_lines
from storage.objects import Blocks


class InputShorterError(MillraceError):
    """The input file holds fewer items than its job counted."""

    code = "input_shorter"


OpenInput: TypeAlias = Callable[[], Blocks]

UNREADABLE: Final = ""
"""In place of the id in a line that cannot be read: the other lines of its job must not wait."""


class CustomIds:
    """Reads the input files alongside the rows; opened only when a row asks."""

    def __init__(self, open_inputs: OpenInput | Sequence[OpenInput], *, input_bytes: int) -> None:
        """`open_inputs` are in the order of their items.

        `input_bytes` bounds a line, as no line is longer than its file.
        """
        self._open_inputs = [open_inputs] if callable(open_inputs) else open_inputs
        self._input_bytes = input_bytes
        self._blocks: Blocks | None = None
        self._lines = self._all_lines()
        self._next_index = 0
        self.unreadable_count = 0  # lines that were asked for and are not what validation saw

    def at(self, item_index: int) -> str:
        """Return the id of an item, or `UNREADABLE`; indexes only grow from call to call.

        Raises InputShorterError, ObjectMissingError.
        """
        for _, _, line in self._lines:
            self._next_index += 1
            if self._next_index > item_index:
                return self._custom_id(line or b"")
        raise InputShorterError(index=item_index)

    def close(self) -> None:
        """Give the input file back; harmless when it was never opened."""
        if self._blocks is not None:
            self._blocks.close()

    def _custom_id(self, line: bytes) -> str:
        try:
            return custom_id_of(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self.unreadable_count += 1
            return UNREADABLE

    def _all_lines(self) -> Iterator[Line]:
        for open_input in self._open_inputs:
            self._blocks = open_input()
            yield from input_lines(self._blocks, line_bytes_max=max(1, self._input_bytes))
            self._blocks.close()
