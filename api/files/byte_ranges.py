"""The `Range` header (RFC 9110, 14.2). A single range is served; otherwise the whole file is."""

import re
from dataclasses import dataclass
from typing import Final

_ONE_RANGE: Final = re.compile(r"bytes=[ \t]*([0-9]{0,18})-([0-9]{0,18})[ \t]*")


@dataclass(frozen=True, slots=True)
class ByteRange:
    """A range of an object."""

    offset: int
    length: int


class RangeUnsatisfiableError(Exception):
    """The range starts after the end of the object."""


def parse_range(header: str | None, size_bytes: int) -> ByteRange | None:
    """Return the requested range, or None for the whole object. Raises RangeUnsatisfiableError."""
    parts = _ONE_RANGE.fullmatch(header or "")
    if parts is None or parts[1] == parts[2] == "":
        return None
    if parts[1] == "":
        length = min(int(parts[2]), size_bytes)
        if length == 0:
            raise RangeUnsatisfiableError
        return ByteRange(size_bytes - length, length)
    first = int(parts[1])
    last = int(parts[2]) if parts[2] else size_bytes - 1
    if parts[2] and last < first:
        return None  # not a valid range
    if first >= size_bytes:
        raise RangeUnsatisfiableError
    return ByteRange(first, min(last, size_bytes - 1) - first + 1)
