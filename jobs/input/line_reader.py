"""Lines of an input file from any byte offset, in constant memory however long a line is."""

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

import msgspec

Line: TypeAlias = tuple[int, int, bytes | None]
"""Line number (from 1, blank lines counted), byte offset of its start, and its bytes without the
newline; None when it is longer than the limit. A tuple, because it is made a million times a job.
"""


class _Named(msgspec.Struct, gc=False):
    """Typed as loosely as validation reads: of a repeated key only the last one was judged."""

    custom_id: Any


_NAMED: Final = msgspec.json.Decoder(_Named)
BOM: Final = b"\xef\xbb\xbf"


def custom_id_of(line: bytes) -> str:
    """Return the `custom_id` of a line that was validated. Raises what msgspec raises."""
    found = _NAMED.decode(line).custom_id
    if type(found) is not str:
        raise msgspec.ValidationError("a custom_id is no text")
    return found


def input_lines(
    blocks: Iterable[bytes], *, line_bytes_max: int, offset: int = 0, lines_before: int = 0
) -> Iterator[Line]:
    """Yield the lines that are not blank, from `offset`, which must be the start of a line.

    One byte order mark at the start of the file is no part of its first line. A carriage return
    before a newline stays: JSON takes it for white space. The last line needs no newline.
    At most `line_bytes_max` and two blocks are held.
    """
    number = lines_before
    if offset == 0:
        blocks, offset = _without_bom(blocks)
    parts: list[bytes] = []  # the beginning of a line whose end is in a later block
    held = 0
    for block in blocks:
        lines = block.split(b"\n")
        if len(lines) > 1 and held:
            parts.append(lines[0])
            held += len(lines[0])
            number += 1
            if held > line_bytes_max:
                yield number, offset, None
            else:
                line = b"".join(parts)
                if not line.isspace():
                    yield number, offset, line
            offset += held + 1
            parts.clear()
            held = 0
            del lines[0]
        rest = lines.pop()
        for line in lines:
            number += 1
            if line and not line.isspace():
                yield number, offset, line if len(line) <= line_bytes_max else None
            offset += len(line) + 1
        if rest:
            held += len(rest)
            if held <= line_bytes_max:
                parts.append(rest)
            else:
                parts.clear()  # too long already: only its length is needed
    if held > line_bytes_max:
        yield number + 1, offset, None
    elif held and not (line := b"".join(parts)).isspace():
        yield number + 1, offset, line


def _without_bom(blocks: Iterable[bytes]) -> tuple[Iterator[bytes], int]:
    """Return the blocks behind a byte order mark, and how many bytes it took."""
    rest = iter(blocks)
    head = b""
    for block in rest:
        head += block
        if len(head) >= len(BOM):
            break
    taken = len(BOM) if head.startswith(BOM) else 0
    return _with_head(head[taken:], rest), taken


def _with_head(head: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if head:
        yield head
    yield from rest
