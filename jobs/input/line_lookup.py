"""Single lines of an input file by their offsets: few reads where lines lie close together."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from jobs.input.line_reader import input_lines
from jobs.settings import LINE_BYTES_CEILING
from storage.objects.object_store import ObjectStore
from storage.objects.whole_objects import read_object

_SPAN_BYTES: Final = 1024 * 1024
"""Lines that begin within so many bytes are read at once: a read costs as much as these bytes."""

_LINE_BYTES: Final = 64 * 1024
"""What is read behind the start of the last line; a longer line is read again by itself."""


def read_lines_at(
    objects: ObjectStore,
    key: str,
    offsets: Sequence[int],
    is_over: Callable[[], bool] = lambda: False,
) -> Iterator[bytes | None]:
    """Yield the line that begins at each of `offsets`, which are in rising order.

    At 0 that is the file's first line that is not blank. None: there is no line, or none that
    validation would have taken. Asked before each read, `is_over` ends it all. Raises what a store
    raises.
    """
    for near in _neighbours(offsets):
        if is_over():
            return
        first, asked = near[0], near[-1] - near[0] + _LINE_BYTES
        data = read_object(objects, key, offset=first, length=asked)
        for offset in near:
            end = data.find(b"\n", offset - first)
            if offset and end >= 0:
                yield data[offset - first : end]
            elif is_over():
                return
            else:
                yield _line_at(objects, key, offset)


def _neighbours(offsets: Sequence[int]) -> Iterator[list[int]]:
    near: list[int] = []
    for offset in offsets:
        if near and offset - near[0] > _SPAN_BYTES:
            yield near
            near = []
        near.append(offset)
    if near:
        yield near


def _line_at(objects: ObjectStore, key: str, offset: int) -> bytes | None:
    with objects.read(key, offset=offset) as blocks:
        lines = input_lines(blocks, line_bytes_max=LINE_BYTES_CEILING, offset=offset)
        return next((line for _, _, line in lines), None)
