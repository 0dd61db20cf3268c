"""Finds single lines of an output or error file by the index of their item.

Lines are in index order and begin with an id that ends in the index, so a binary search finds a
line in a file of any size.
"""

import json
from collections.abc import Iterator
from typing import Final
from uuid import UUID

from core.ids import JOB
from jobs.input.line_reader import Line, input_lines
from results.views.result_sources import StoredFile
from storage.objects.object_store import ObjectBlocks, ObjectReader, read_object

_NEAR_BYTES: Final = 64 * 1024
"""Within this distance of a line reading on is faster than halving again."""

_HEAD_BYTES: Final = 4096
"""Bytes that contain a line's id and a `custom_id` of 512 characters, also escaped ones."""

_FORWARD_MAX: Final = 1000  # lines that are skipped to reach a later one
_NOWHERE: Final = -_FORWARD_MAX - 1
_DIGITS: Final = 8
_NAME: Final = '"custom_id":'
_decode = json.JSONDecoder().raw_decode


class ResultFileLines:
    """Searches one file. Not thread-safe. Close it."""

    def __init__(self, store: ObjectReader, file: StoredFile, job_id: UUID) -> None:
        self._store, self._file = store, file
        self._prefix = f'{{"id":"{JOB}_req_{job_id.hex}'.encode()
        self._blocks: ObjectBlocks | None = None
        self._lines: Iterator[Line] = iter(())
        self._last = _NOWHERE  # index of the line read last

    def find_line(self, index: int) -> tuple[int, int] | None:
        """Return offset and length of an item's line with its newline; None without one.

        Raises ObjectNotFoundError, ObjectStoreUnavailableError.
        """
        found: int | None = None
        start = self._near(index)
        with self._store.read(self._file.key, offset=start) as blocks:
            for _, offset, line in input_lines(blocks, line_bytes_max=_NEAR_BYTES, offset=start):
                if found is not None:
                    return found, offset - found
                at = self._index_of(line or self._head(offset))
                if at == index:
                    found = offset
                elif at > index:
                    return None
        return None if found is None else (found, self._file.size_bytes - found)

    def custom_id(self, index: int) -> str | None:
        """Return the `custom_id` in an item's line; fast when indexes rise from call to call.

        Raises ObjectNotFoundError, ObjectStoreUnavailableError.
        """
        if not self._last < index <= self._last + _FORWARD_MAX:
            self._open_at(self._near(index))
        for _, offset, line in self._lines:
            head = line or self._head(offset)
            self._last = self._index_of(head)
            if self._last == index:
                text = head.decode(errors="replace")
                name, _ = _decode(text, text.index(_NAME) + len(_NAME))
                return str(name)
            if self._last > index:
                break
        self._last = _NOWHERE
        return None

    def close(self) -> None:
        """Close the file; harmless when it was never opened."""
        if self._blocks is not None:
            self._blocks.close()

    def _open_at(self, offset: int) -> None:
        self.close()
        self._blocks = self._store.read(self._file.key, offset=offset)
        self._lines = input_lines(self._blocks, line_bytes_max=_NEAR_BYTES, offset=offset)

    def _near(self, index: int) -> int:
        """Return the start of a line at or shortly before that of `index`."""
        low, high = 0, self._file.size_bytes
        while high - low > _NEAR_BYTES:
            middle = (low + high) // 2
            start = self._line_start(middle, high)
            if start is not None and self._index_of(self._head(start)) <= index:
                low = start
            else:
                high = middle
        return low

    def _line_start(self, offset: int, end: int) -> int | None:
        """Return the first start of a line from `offset` on and before `end`."""
        at = offset - 1
        with self._store.read(self._file.key, offset=at, length=end - at) as blocks:
            for block in blocks:
                newline = block.find(b"\n")
                if newline >= 0:
                    start = at + newline + 1
                    return start if start < end else None
                at += len(block)
        return None

    def _head(self, offset: int) -> bytes:
        return read_object(self._store, self._file.key, offset=offset, length=_HEAD_BYTES)

    def _index_of(self, head: bytes) -> int:
        assert head.startswith(self._prefix)  # the finaliser wrote the file
        begin = len(self._prefix)
        return int(head[begin : begin + _DIGITS], 16)
