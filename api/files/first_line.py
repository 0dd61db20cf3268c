"""The model that the first line of an input file names, before the file is validated.

Best effort: a longer first line, or one that is no valid request, names no model. Nothing of a line
is logged or kept.
"""

from typing import Final

import msgspec

FIRST_LINE_BYTES: Final = 1024 * 1024
"""Bytes of a file that are looked at: the usual limit of a line."""

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class _LineBody(msgspec.Struct):
    model: str


class _Line(msgspec.Struct):
    body: _LineBody


def first_model(start: bytes) -> str | None:
    """Return the model that the first line of `start` names; None if it is not whole or valid.

    Blank lines and a byte order mark before it do not count, as for intake.
    """
    line, _, _ = start.removeprefix(_BYTE_ORDER_MARK).lstrip().partition(b"\n")
    try:
        return msgspec.json.decode(line, type=_Line).body.model
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


class FirstLine:
    """Finds the model of a file while its bytes arrive, split anywhere. It does no I/O."""

    def __init__(self) -> None:
        """Know no model before the first line is whole."""
        self.model: str | None = None
        self._start: bytearray | None = bytearray()  # None: nothing more is looked for
        self._bytes_left = FIRST_LINE_BYTES
        self._is_at_start = True  # a byte order mark may follow
        self._searched = 0  # bytes of `_start` without the end of the line

    @property
    def is_decided(self) -> bool:
        """Whether later bytes change nothing."""
        return self._start is None

    def feed(self, data: bytes) -> None:
        """Add the next bytes of the file. Each byte is looked at a constant number of times."""
        start = self._start
        if start is None:
            return
        start += data[: self._bytes_left]
        self._bytes_left -= min(len(data), self._bytes_left)
        if self._is_at_start and len(start) < len(_BYTE_ORDER_MARK) and self._bytes_left > 0:
            return  # the mark may not be whole
        self._skip_blank(start)
        end = start.find(b"\n", self._searched)
        self._searched = len(start)
        if end >= 0:
            self._start = None
            self.model = first_model(bytes(start[:end]))
        elif self._bytes_left <= 0:
            self._start = None

    def _skip_blank(self, start: bytearray) -> None:
        """Drop the byte order mark and blank lines at the start: only the line itself is kept."""
        if self._is_at_start:
            self._is_at_start = False
            if start.startswith(_BYTE_ORDER_MARK):
                del start[: len(_BYTE_ORDER_MARK)]
        if self._searched == 0:
            del start[: len(start) - len(start.lstrip())]
