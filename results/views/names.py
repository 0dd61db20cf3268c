"""Which `custom_id` an item has, and which item a `custom_id` names, from the files of its job.

Rows hold the id of every item that a consumer read. Of the others, the error file tells once the
job has ended, and its input until then. Rows of a job that retains nothing hold none.
"""

from contextlib import suppress
from typing import Final
from uuid import UUID

import msgspec

from jobs.input_lines import custom_id_of, input_lines
from jobs.settings import LINE_BYTES_CEILING
from results.custom_ids import CustomIds, InputShorterError
from results.views.result_file_lines import ResultFileLines
from results.views.sources import InputPart, ResultSource, StoredFile
from storage.errors import ObjectMissingError
from storage.objects import ObjectStore

_ESCAPES: Final = (b"\\u", b"\\/")
"""How else than we do may others write a character."""


_PASSED_MAX: Final = 20_000
"""Names in memory of a job whose rows have none: results come in order but for so many."""


class ItemNames:
    """Tells the `custom_id` of items; quick when indexes grow. One thread uses it. Close it."""

    def __init__(self, store: ObjectStore, source: ResultSource) -> None:
        """Open nothing yet."""
        self._store, self._source = store, source
        self._error = ResultFileLines(store, source.error, source.job_id) if source.error else None
        self._output: ResultFileLines | None = None
        self._input: CustomIds | None = None
        self._part = source.inputs[0]
        self._last = -1
        self._passed: dict[int, str] = {}  # the oldest first
        self._next = 0

    def at(self, index: int) -> str | None:
        """Return the id of an item without one in its row; None when no file tells any more.

        Raises ObjectStoreAwayError.
        """
        is_in_no_row = self._source.job.zero_retention
        try:
            if self._error is not None and not is_in_no_row:
                return self._error.custom_id(index)
            return self._passing(index) if is_in_no_row else self._from_input(index)
        except (ObjectMissingError, InputShorterError):
            return self._from_results(index) if is_in_no_row else None

    def close(self) -> None:
        """Give the files back."""
        for lines in (self._error, self._output):
            if lines is not None:
                lines.close()
        if self._input is not None:
            self._input.close()

    def _passing(self, index: int) -> str:
        """Read on to an item, and remember those that were passed: they are asked for soon."""
        known = self._passed.get(index)
        if known is not None:
            return known
        first = part_of(self._source, index).first_index
        if self._next > index or first - self._next > _PASSED_MAX:
            self._next = first
        while True:
            name = self._passed[self._next] = self._from_input(self._next)
            if len(self._passed) > _PASSED_MAX:
                del self._passed[next(iter(self._passed))]
            self._next += 1
            if self._next > index:
                return name

    def _from_results(self, index: int) -> str | None:
        """Look in both files: the input may be deleted once the job has ended."""
        source = self._source
        if self._output is None and source.output is not None:
            self._output = ResultFileLines(self._store, source.output, source.job_id)
        for lines in (self._output, self._error):
            if lines is not None:
                with suppress(ObjectMissingError):
                    name = lines.custom_id(index)
                    if name is not None:
                        return name
        return None

    def _from_input(self, index: int) -> str:
        part = part_of(self._source, index)
        if self._input is None or part is not self._part or index <= self._last:
            if self._input is not None:
                self._input.close()
            self._input = self._open(part)
            self._part = part
        self._last = index
        return self._input.at(index - part.first_index)

    def _open(self, part: InputPart) -> CustomIds:
        file = part.file
        return CustomIds(
            lambda offset: self._store.read(file.key, offset=offset), input_bytes=file.size_bytes
        )


def part_of(source: ResultSource, index: int) -> InputPart:
    """Return the input file that holds an item."""
    return max(
        (part for part in source.inputs if part.first_index <= index),
        key=lambda part: part.first_index,
    )


def find_index(store: ObjectStore, source: ResultSource, custom_id: str) -> int | None:
    """Return the index of the item that has a `custom_id`, reading files from their start.

    None: no item has it, or no file that tells is left. Raises ObjectStoreAwayError.
    """
    try:
        for part in source.inputs:
            position = _position(store, part.file, custom_id)
            if position is not None:
                return part.first_index + position
    except ObjectMissingError:
        for file in (source.output, source.error):
            index = None if file is None else _in_results(store, file, source.job_id, custom_id)
            if index is not None:
                return index
    return None


def _position(store: ObjectStore, file: StoredFile, custom_id: str) -> int | None:
    """Return the number of the line that has the id, from 0 and without blank ones."""
    with store.read(file.key) as blocks:
        lines = input_lines(blocks, line_bytes_max=LINE_BYTES_CEILING)
        encoded = msgspec.json.encode(custom_id)
        for position, (_, _, line) in enumerate(lines):
            if line is not None and _has(line, custom_id, encoded):
                return position
    return None


def _in_results(store: ObjectStore, file: StoredFile, job_id: UUID, custom_id: str) -> int | None:
    try:
        with store.read(file.key) as blocks:
            lines = input_lines(blocks, line_bytes_max=LINE_BYTES_CEILING)
            encoded = msgspec.json.encode(custom_id)
            for _, _, line in lines:
                if line is not None and _has(line, custom_id, encoded):
                    return int(line[line.index(job_id.hex.encode()) + 32 :][:8], 16)
    except ObjectMissingError:
        pass
    return None


def _has(line: bytes, custom_id: str, encoded: bytes) -> bool:
    """Whether a line's `custom_id` is this one. Most lines are told apart without parsing."""
    if encoded not in line and not any(e in line for e in _ESCAPES):
        return False
    try:
        return custom_id_of(line) == custom_id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
