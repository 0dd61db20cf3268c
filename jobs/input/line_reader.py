"""Reads the lines of an input file: all from a byte offset, in constant memory, or single ones."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from core.errors import Disposition, MillraceError
from jobs.settings import LINE_BYTES_CEILING
from storage.objects.object_store import ObjectStore, read_object

T = TypeVar("T")

Line: TypeAlias = tuple[int, int, bytes | None]
"""Line number (from 1, including blank lines), byte offset of its start, and its bytes without the
newline; None if it is longer than the limit. A tuple, since a job may have a million lines.
"""


class InputChangedError(MillraceError):
    """The input file is not the one that was validated."""

    code = "input_changed"
    disposition = Disposition.REJECT


class _Named(msgspec.Struct, gc=False):
    """Loosely typed, as in validation: only the last value of a repeated key was checked."""

    custom_id: Any


_NAMED: Final = msgspec.json.Decoder(_Named)
BOM: Final = b"\xef\xbb\xbf"


def custom_id_of(line: bytes) -> str:
    """Return the `custom_id` of a validated line. Raises the errors of msgspec."""
    custom_id = _NAMED.decode(line).custom_id
    if type(custom_id) is not str:
        raise msgspec.ValidationError("custom_id is not a string")
    return custom_id


def decode_validated(decode: Callable[[bytes], T], line: bytes | None, index: int) -> T:
    """Return what `decode` reads from the line of a valid item. Raises InputChangedError."""
    try:
        return decode(line or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InputChangedError(index=index) from None


def input_lines(
    blocks: Iterable[bytes], *, line_bytes_max: int, offset: int = 0, lines_before: int = 0
) -> Iterator[Line]:
    """Yield the lines that are not blank, from `offset`, which must be the start of a line.

    A byte order mark at the start of the file is skipped. A carriage return before a newline stays:
    it is white space in JSON. The last line needs no newline. At most `line_bytes_max` bytes and
    two blocks are in memory.
    """
    number = lines_before
    if offset == 0:
        blocks, offset = _without_bom(blocks)
    parts: list[bytes] = []  # the start of a line whose end is in a later block
    part_bytes = 0
    for block in blocks:
        lines = block.split(b"\n")
        if len(lines) > 1 and part_bytes:
            parts.append(lines[0])
            part_bytes += len(lines[0])
            number += 1
            if part_bytes > line_bytes_max:
                yield number, offset, None
            else:
                line = b"".join(parts)
                if not line.isspace():
                    yield number, offset, line
            offset += part_bytes + 1
            parts.clear()
            part_bytes = 0
            del lines[0]
        tail = lines.pop()
        for line in lines:
            number += 1
            if line and not line.isspace():
                yield number, offset, line if len(line) <= line_bytes_max else None
            offset += len(line) + 1
        if tail:
            part_bytes += len(tail)
            if part_bytes <= line_bytes_max:
                parts.append(tail)
            else:
                parts.clear()  # too long: only its length is needed
    if part_bytes > line_bytes_max:
        yield number + 1, offset, None
    elif part_bytes and not (line := b"".join(parts)).isspace():
        yield number + 1, offset, line


def file_lines(objects: ObjectStore, key: str) -> Iterator[Line]:
    """Yield the lines of a validated file. Raises the errors of the object store."""
    with objects.read(key) as blocks:
        yield from input_lines(blocks, line_bytes_max=LINE_BYTES_CEILING)


def _without_bom(blocks: Iterable[bytes]) -> tuple[Iterator[bytes], int]:
    """Return the blocks behind a byte order mark, and its length in bytes."""
    rest = iter(blocks)
    head = b""
    for block in rest:
        head += block
        if len(head) >= len(BOM):
            break
    bom_bytes = len(BOM) if head.startswith(BOM) else 0
    return chain([head[bom_bytes:]] if head[bom_bytes:] else [], rest), bom_bytes


_SPAN_BYTES: Final = 1024 * 1024
"""Lines that start within so many bytes share one read: a read costs as much as these bytes."""

_LINE_BYTES: Final = 64 * 1024
"""Bytes read behind the start of the last line; a longer line is read again by itself."""


def read_lines_at(
    objects: ObjectStore,
    key: str,
    offsets: Sequence[int],
    is_stopped: Callable[[], bool] = lambda: False,
) -> Iterator[bytes | None]:
    """Yield the line that starts at each of `offsets`, which are in rising order.

    Offset 0 is the first line that is not blank. None: there is no line, or validation would have
    rejected it. `is_stopped` is called before each read and ends the iteration. Raises the errors
    of the object store.
    """
    for group in _nearby(offsets):
        if is_stopped():
            return
        first, length = group[0], group[-1] - group[0] + _LINE_BYTES
        data = read_object(objects, key, offset=first, length=length)
        for offset in group:
            end = data.find(b"\n", offset - first)
            if offset and end >= 0:
                yield data[offset - first : end]
            elif is_stopped():
                return
            else:
                yield _read_line(objects, key, offset)


def _nearby(offsets: Sequence[int]) -> Iterator[list[int]]:
    group: list[int] = []
    for offset in offsets:
        if group and offset - group[0] > _SPAN_BYTES:
            yield group
            group = []
        group.append(offset)
    if group:
        yield group


def _read_line(objects: ObjectStore, key: str, offset: int) -> bytes | None:
    with objects.read(key, offset=offset) as blocks:
        lines = input_lines(blocks, line_bytes_max=LINE_BYTES_CEILING, offset=offset)
        return next((line for _, _, line in lines), None)
