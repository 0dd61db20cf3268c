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
        self._searched = 0

    @property
    def is_decided(self) -> bool:
        """Whether later bytes change nothing."""
        return self._start is None

    def feed(self, data: bytes) -> None:
        """Add the next bytes of the file."""
        start = self._start
        if start is None:
            return
        start += data[: FIRST_LINE_BYTES - len(start)]
        while (end := start.find(b"\n", self._searched)) >= 0:
            self._searched = end + 1
            if start[:end].removeprefix(_BYTE_ORDER_MARK).strip():  # else a blank line
                self._decide(bytes(start[:end]))
                return
        self._searched = len(start)
        if len(start) >= FIRST_LINE_BYTES:
            self._start = None

    def _decide(self, line: bytes) -> None:
        self._start = None
        self.model = first_model(line)
