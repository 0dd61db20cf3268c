"""Stores the order of a file as two objects: its lines in that order, and the place of each item.

    <key>/lines       one line for each item in emission order: position, index, group, offset, line
    <key>/positions   for each item of the file in its order: position in <key>/lines, group

Both are written before the verdict that names them. Group numbers mean nothing outside their file,
and no hash of a prompt is stored. The lines are as readable as the file itself, and go when the job
ends. The positions, 8 bytes an item, stay as long as the job, unless its tenant retains nothing:
after a restore of Postgres, a job that had ended is in progress again, and its cursor counts in
this order. `restore_lines` then writes the lines again (`unneeded_orders` finds what is left over).
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple
from uuid import UUID

import numpy as np

from core.object_names import lines_key, order_prefix, positions_key
from jobs.input.input_files import InputFiles
from jobs.input.line_reader import InputChangedError, Line
from jobs.ordering.item_order import Ints, ItemOrder
from storage.objects.object_store import ObjectReader, ObjectStore, Upload, read_object

READ_BYTES: Final = 128 * 1024 * 1024
"""Bytes of lines in memory during one read of the file."""

PREFIX_BYTES_MAX: Final = 64
"""Bytes before an item's line in the ordered lines, at most: four numbers and spaces."""

_POSITION: Final = np.dtype([("position", "<i4"), ("group", "<i4")])
_CACHED: Final = 8192  # positions that are read at once for single items
_WRITE_BYTES: Final = 1024 * 1024


class OrderedLine(NamedTuple):
    """An item's line in emission order; its position and index are those in its file."""

    position: int
    item_index: int
    group: int
    offset: int  # of the line in its file
    line: bytes


def new_order_key(job_id: UUID, file_number: int, epoch: int) -> str:
    """Return the key of an order. `epoch` is that of the lease under which it is written.

    A process that lost its lease never replaces the order that a verdict names.
    """
    return f"{order_prefix(job_id)}{file_number}-{epoch}"


def write_order(
    objects: ObjectStore, key: str, order: ItemOrder, read_lines: Callable[[], Iterable[Line]]
) -> None:
    """Store an order. `read_lines` reads the file, once for each `READ_BYTES` of it.

    Memory is bounded by `READ_BYTES` and 16 bytes an item. Raises InputChangedError, and the errors
    of reading and of the object store.
    """
    pairs = np.empty(order.item_count, dtype=_POSITION)
    pairs["position"], pairs["group"] = order.positions, order.groups
    with objects.begin_upload(positions_key(key)) as upload:
        _write(upload, memoryview(pairs.tobytes()))
        upload.complete()
    _write_lines(objects, key, order, read_lines)


def restore_lines(objects: ObjectStore, key: str, read_lines: Callable[[], Iterable[Line]]) -> None:
    """Write the lines of a stored order again, byte for byte, from its positions and the file.

    Several processes may do so at once. Raises InputChangedError, and the errors of reading and of
    the object store.
    """
    pairs = _positions_of(read_object(objects, positions_key(key)))
    sizes = np.fromiter((len(line or b"") for _, _, line in read_lines()), dtype=np.uint32)
    if len(sizes) != len(pairs):
        raise InputChangedError(order_key=key)
    order = ItemOrder(pairs["position"], pairs["group"], sizes, 0)
    _write_lines(objects, key, order, read_lines)


def _write_lines(
    objects: ObjectStore, key: str, order: ItemOrder, read_lines: Callable[[], Iterable[Line]]
) -> None:
    with objects.begin_upload(lines_key(key)) as upload:
        for first, end in _parts(order):
            for line in _lines_between(order, first, end, read_lines()):
                upload.write(line)
        upload.complete()


def _parts(order: ItemOrder) -> Iterator[tuple[int, int]]:
    """Yield ranges of positions whose lines fit into memory."""
    ends = np.cumsum(order.sizes[order.sequence()], dtype=np.int64)
    first = 0
    while first < order.item_count:
        before = int(ends[first - 1]) if first else 0
        end = int(np.searchsorted(ends, before + READ_BYTES, side="right"))
        end = max(end, first + 1)
        yield first, end
        first = end


def _lines_between(
    order: ItemOrder, first: int, end: int, lines: Iterable[Line]
) -> Iterator[bytes]:
    """Yield the entries of the positions from `first` to before `end`, in blocks."""
    found: list[bytes | None] = [None] * (end - first)
    # Numbers of the items in this part, in the order of the file; only they are looked at.
    wanted = np.flatnonzero((order.positions >= first) & (order.positions < end))
    places = (order.positions[wanted] - first).tolist()
    groups = order.groups[wanted].tolist()
    entries = zip(wanted.tolist(), places, groups, strict=True)
    index, place, group = next(entries)
    for number, (_, offset, line) in enumerate(lines):
        if number == index:
            if line is None:
                raise InputChangedError(index=index)
            found[place] = b"%d %d %d %d %b\n" % (first + place, index, group, offset, line)
            index, place, group = next(entries, (-1, 0, 0))
            if index < 0:
                break
    if index >= 0:
        raise InputChangedError(index=index)
    block: list[bytes] = []
    block_bytes = 0
    for entry in found:
        assert entry is not None
        block.append(entry)
        block_bytes += len(entry)
        if block_bytes >= _WRITE_BYTES:
            yield b"".join(block)
            block, block_bytes = [], 0
    yield b"".join(block)


def _write(upload: Upload, content: memoryview) -> None:
    for first in range(0, len(content), _WRITE_BYTES):
        upload.write(bytes(content[first : first + _WRITE_BYTES]))


def parse_ordered_line(entry: bytes | None) -> OrderedLine:
    """Return the parts of an entry of the ordered lines. Raises InputChangedError."""
    try:
        *numbers, line = (entry or b"").split(b" ", 4)
        position, index, group, offset = map(int, numbers)
        return OrderedLine(position, index, group, offset, line)
    except ValueError:
        raise InputChangedError from None


def job_positions(objects: ObjectReader, files: InputFiles, indexes: range) -> list[int] | None:
    """Return the positions of a range of a job's items; None if they are the indexes.

    Raises InputChangedError, and the errors of the object store.
    """
    found: list[int] = []
    is_ordered = False
    while len(found) < len(indexes):
        first = indexes.start + len(found)
        file, left = files.file_at(first), files.count_left(first)
        end = indexes.stop if left is None else min(indexes.stop, first + left)
        if file.order_key:
            is_ordered = True
            span = range(first - file.first_index, end - file.first_index)
            places = OrderPositions(objects, file.order_key).read(span) + file.first_index
            found += places.tolist()
        else:
            found += range(first, end)
    return found if is_ordered else None


class OrderPositions:
    """The positions of the items of one file, read as they are needed. Not thread-safe."""

    def __init__(self, objects: ObjectReader, order_key: str) -> None:
        self._objects, self._key = objects, positions_key(order_key)
        self._first = 0  # of the items in `_cached`
        self._cached = np.empty(0, dtype=_POSITION)

    def read(self, indexes: range) -> Ints:
        """Return the position of each item of a range of the file. Raises InputChangedError."""
        return self._read(indexes)["position"]

    def group_of(self, index: int) -> int:
        """Return the prefix group of an item; fastest for rising indexes."""
        if not self._first <= index < self._first + len(self._cached):
            self._first = index
            self._cached = self._read(range(index, index + _CACHED), is_exact=False)
        return int(self._cached[index - self._first]["group"])

    def _read(self, indexes: range, *, is_exact: bool = True) -> np.ndarray[Any, np.dtype[Any]]:
        size = _POSITION.itemsize
        offset, length = indexes.start * size, len(indexes) * size
        data = read_object(self._objects, self._key, offset=offset, length=length)
        if is_exact and len(data) < length:
            raise InputChangedError(index=indexes.start)
        return _positions_of(data)


def _positions_of(data: bytes) -> np.ndarray[Any, np.dtype[Any]]:
    if not data or len(data) % _POSITION.itemsize:
        raise InputChangedError
    return np.frombuffer(data, dtype=_POSITION)
