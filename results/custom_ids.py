"""The `custom_id` of items that no consumer ever read, from the input file, in item order."""

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from core.errors import MillraceError
from jobs.input_lines import Line, input_lines
from storage.objects import Blocks


class InputShorterError(MillraceError):
    """The input file holds fewer items than its job counted."""

    code = "input_shorter"


class _Named(msgspec.Struct, gc=False):
    custom_id: str


_NAMED: Final = msgspec.json.Decoder(_Named)


class CustomIds:
    """Reads the input file alongside the rows; opened only when a row asks."""

    def __init__(self, open_input: Callable[[], Blocks], *, input_bytes: int) -> None:
        """`input_bytes` bounds a line, as no line is longer than its file."""
        self._open_input = open_input
        self._input_bytes = input_bytes
        self._blocks: Blocks | None = None
        self._lines: Iterator[Line] = iter(())
        self._next_index = 0

    def at(self, item_index: int) -> str:
        """Return the id of an item; indexes only grow from call to call.

        Raises InputShorterError, ObjectMissingError.
        """
        if self._blocks is None:
            self._blocks = self._open_input()
            self._lines = input_lines(self._blocks, line_bytes_max=max(1, self._input_bytes))
        for _, _, line in self._lines:
            self._next_index += 1
            if self._next_index > item_index:
                return _NAMED.decode(line or b"").custom_id
        raise InputShorterError(index=item_index)

    def close(self) -> None:
        """Give the input file back; harmless when it was never opened."""
        if self._blocks is not None:
            self._blocks.close()
