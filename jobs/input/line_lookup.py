"""Reads single lines of an input file by their offsets, with few reads for nearby lines."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from jobs.input.line_reader import input_lines
from jobs.settings import LINE_BYTES_CEILING
from storage.objects.object_content import read_object
from storage.objects.object_store import ObjectStore

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
