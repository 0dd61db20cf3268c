"""Finds the `custom_id` of an item and the item with a `custom_id`, in the files of the job.

Item rows have the id of every item that a replica read. For the others it is read from the error
file of a terminal job, or from the input. Rows of zero-retention jobs have no ids.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

import msgspec

from core.clock import Clock
from core.errors import Disposition, MillraceError
from jobs.input.line_reader import custom_id_of, input_lines
from jobs.settings import LINE_BYTES_CEILING
from results.finaliser.input_custom_ids import InputCustomIds, InputShorterError
from results.views.result_file_lines import ResultFileLines
from results.views.result_sources import ResultSource
from storage.objects.errors import ObjectNotFoundError
from storage.objects.object_store import ObjectBlocks, ObjectReader, ObjectStore

_ESCAPES: Final = (b"\\u", b"\\/")
"""Escapes of other JSON encoders for characters that msgspec does not escape."""


class SearchOverdueError(MillraceError):
    """The search took too long."""

    code = "search_overdue"
    disposition = Disposition.RETRY


class TimedReads:
    """The reads of one search. The store bounds a single read that hangs."""

    def __init__(self, store: ObjectStore, clock: Clock, *, time_s_max: float) -> None:
        self._store, self._clock = store, clock
        self._until_s = clock.monotonic_s() + time_s_max

    def read(self, key: str, *, offset: int = 0, length: int | None = None) -> ObjectBlocks:
        """See `ObjectStore`. The blocks raise SearchOverdueError after the deadline."""
        blocks = self._store.read(key, offset=offset, length=length)

        def read_in_time(_: int) -> bytes:
            if self._clock.monotonic_s() > self._until_s:
                raise SearchOverdueError
            return next(blocks, b"")

        return ObjectBlocks(read_in_time, blocks.close, None)


class ItemCustomIds:
    """Reads the `custom_id` of items; fast for rising indexes. Not thread-safe. Close it."""

    def __init__(self, store: ObjectReader, source: ResultSource) -> None:
        self._store, self._source = store, source
        self._error = ResultFileLines(store, source.error, source.job_id) if source.error else None
        self._output: ResultFileLines | None = None
        self._input = InputCustomIds(store, source.inputs, keeps_skipped=source.job.zero_retention)

    def at(self, index: int) -> str | None:
        """Return the id of an item whose row has none; None when no file has it any more.

        Raises ObjectStoreUnavailableError.
        """
        is_zero_retention = self._source.job.zero_retention
        try:
            if self._error is not None and not is_zero_retention:
                return self._error.custom_id(index)
            return self._input.at(index)
        except (ObjectNotFoundError, InputShorterError):
            return self._from_results(index) if is_zero_retention else None

    def by_index(self, indexes: Iterable[int]) -> dict[int, str | None]:
        """Return the ids of several items, reading the files in order."""
        return {index: self.at(index) for index in sorted(indexes)}

    def close(self) -> None:
        """Close the files."""
        for lines in (self._error, self._output):
            if lines is not None:
                lines.close()
        self._input.close()

    def _from_results(self, index: int) -> str | None:
        """Search both result files: the input may be deleted once the job is terminal."""
        source = self._source
        if self._output is None and source.output is not None:
            self._output = ResultFileLines(self._store, source.output, source.job_id)
        for lines in (self._output, self._error):
            if lines is not None:
                with suppress(ObjectNotFoundError):
                    name = lines.custom_id(index)
                    if name is not None:
                        return name
        return None


def find_index(store: ObjectReader, source: ResultSource, custom_id: str) -> int | None:
    """Return the index of the item with a `custom_id`, reading the files from their start.

    None when no item has it, or the files are deleted. Raises ObjectStoreUnavailableError.
    """
    try:
        for file in source.inputs:
            for position, _ in _lines_with(store, file.key, custom_id):
                return file.first_index + position
    except ObjectNotFoundError:
        for stored in filter(None, (source.output, source.error)):
            with suppress(ObjectNotFoundError):
                for _, line in _lines_with(store, stored.key, custom_id):
                    return int(line[line.index(source.job_id.hex.encode()) + 32 :][:8], 16)
    return None


def _lines_with(store: ObjectReader, key: str, custom_id: str) -> Iterator[tuple[int, bytes]]:
    """Yield the lines with the id and their numbers, from 0, without blank lines."""
    with store.read(key) as blocks:
        lines = input_lines(blocks, line_bytes_max=LINE_BYTES_CEILING)
        encoded = msgspec.json.encode(custom_id)
        for position, (_, _, line) in enumerate(lines):
            if line is not None and _has(line, custom_id, encoded):
                yield position, line


def _has(line: bytes, custom_id: str, encoded: bytes) -> bool:
    """Whether a line has this `custom_id`. Most lines are excluded without parsing."""
    if encoded not in line and not any(e in line for e in _ESCAPES):
        return False
    try:
        return custom_id_of(line) == custom_id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
