"""Which `custom_id` an item has, and which item a `custom_id` names, from the files of its job.

Rows hold the id of every item that a consumer read. Of the others, the error file tells once the
job has ended, and its input until then. Rows of a job that retains nothing hold none.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Final
from uuid import UUID

import msgspec

from jobs.input.line_reader import custom_id_of, input_lines
from jobs.settings import LINE_BYTES_CEILING
from results.views.input_custom_ids import InputCustomIds
from results.views.result_file_lines import ResultFileLines
from results.views.result_sources import ResultSource, StoredFile
from results.writer.custom_ids import InputShorterError
from storage.objects.errors import ObjectMissingError
from storage.objects.object_store import Reads

_ESCAPES: Final = (b"\\u", b"\\/")
"""How else than we do may others write a character."""


class ItemCustomIds:
    """Tells the `custom_id` of items; quick when indexes grow. One thread uses it. Close it."""

    def __init__(self, store: Reads, source: ResultSource) -> None:
        """Open nothing yet."""
        self._store, self._source = store, source
        self._error = ResultFileLines(store, source.error, source.job_id) if source.error else None
        self._output: ResultFileLines | None = None
        self._input = InputCustomIds(store, source, keeps_passed=source.job.zero_retention)

    def at(self, index: int) -> str | None:
        """Return the id of an item without one in its row; None when no file tells any more.

        Raises ObjectStoreAwayError.
        """
        is_in_no_row = self._source.job.zero_retention
        try:
            if self._error is not None and not is_in_no_row:
                return self._error.custom_id(index)
            return self._input.at(index)
        except (ObjectMissingError, InputShorterError):
            return self._from_results(index) if is_in_no_row else None

    def of(self, indexes: Iterable[int]) -> dict[int, str | None]:
        """Return the same of several items, for which files are read in their order."""
        return {index: self.at(index) for index in sorted(indexes)}

    def close(self) -> None:
        """Give the files back."""
        for lines in (self._error, self._output):
            if lines is not None:
                lines.close()
        self._input.close()

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


def find_index(store: Reads, source: ResultSource, custom_id: str) -> int | None:
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


def _position(store: Reads, file: StoredFile, custom_id: str) -> int | None:
    """Return the number of the line that has the id, from 0 and without blank ones."""
    with store.read(file.key) as blocks:
        lines = input_lines(blocks, line_bytes_max=LINE_BYTES_CEILING)
        encoded = msgspec.json.encode(custom_id)
        for position, (_, _, line) in enumerate(lines):
            if line is not None and _has(line, custom_id, encoded):
                return position
    return None


def _in_results(store: Reads, file: StoredFile, job_id: UUID, custom_id: str) -> int | None:
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
