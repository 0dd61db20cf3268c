"""The input files of a job and the items that each holds; most jobs have one file."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar
from uuid import UUID

import sqlalchemy as sa

from jobs.expansion.cursors import ExpansionCursor
from jobs.input.line_reader import input_lines
from jobs.settings import LINE_BYTES_CEILING
from jobs.tables.files import job_inputs
from storage.objects.object_store import ObjectStore

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class InputFile:
    """An accepted file; its items have consecutive indexes in the job."""

    key: str  # of its object
    first_index: int
    size_bytes: int = 0  # 0: not known
    order_key: str = ""  # of its order; empty: its items are emitted in the order of the file


class InputFiles:
    """The files of a job in the order of their items."""

    def __init__(
        self,
        first_key: str,
        appended: Sequence[InputFile] = (),
        *,
        first_bytes: int = 0,
        first_order_key: str = "",
    ) -> None:
        """`appended` is ordered by number."""
        self._files = [InputFile(first_key, 0, first_bytes, first_order_key), *appended]
        self._firsts = [file.first_index for file in self._files]

    def __iter__(self) -> Iterator[InputFile]:
        return iter(self._files)

    def file_at(self, item_index: int) -> InputFile:
        """Return the file that holds an item; the last file for an index that is not known yet."""
        return self._files[bisect_right(self._firsts, item_index) - 1]

    def count_left(self, item_index: int) -> int | None:
        """Return how many items the file of this item has from it on; None for the last file."""
        position = bisect_right(self._firsts, item_index)
        if position == len(self._firsts):
            return None
        return self._firsts[position] - item_index

    def reading_start(self, cursor: ExpansionCursor) -> ExpansionCursor:
        """Return where to continue reading: a file that is not started begins at its first byte."""
        if self.file_at(cursor.item_index).first_index < cursor.item_index:
            return cursor
        return ExpansionCursor(0, 0, cursor.item_index)

    def group_by_file(
        self, entries: Iterable[T], index_of: Callable[[T], int]
    ) -> Iterator[tuple[InputFile, list[T]]]:
        """Group entries, which are in the order of their items, by the file of the item."""
        for file, group in groupby(entries, key=lambda entry: self.file_at(index_of(entry))):
            yield file, list(group)


def appended_files(
    connection: sa.Connection, job_ids: Collection[UUID]
) -> dict[UUID, list[InputFile]]:
    """Return the accepted appended files of jobs, in order; jobs without any are absent."""
    columns = job_inputs.c
    query = (
        sa.select(columns.job_id, columns.object_key, columns.first_index, columns.size_bytes)
        .add_columns(sa.func.coalesce(columns.order_key, ""))
        .where(columns.job_id.in_(job_ids), columns.state == "accepted")
        .order_by(columns.job_id, columns.number)
    )
    found: defaultdict[UUID, list[InputFile]] = defaultdict(list)
    for job_id, *file in connection.execute(query):
        found[job_id].append(InputFile(*file))
    return dict(found)


def input_files(connection: sa.Connection, job: sa.Row[Any]) -> InputFiles:
    """Return the accepted files of a row of `jobs`."""
    appended = appended_files(connection, [job.id]).get(job.id, ())
    return InputFiles(
        job.input_key,
        appended,
        first_bytes=job.input_bytes,
        first_order_key=job.order_key or "",
    )


def read_item_lines(
    objects: ObjectStore,
    file: InputFile,
    indexes: Sequence[int],
    is_stopped: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield index, offset and line of the items of `indexes` (in order, at least one).

    Reads the file from its start. A line is None if validation would have rejected it.
    `is_stopped` is called after each block and ends the iteration.
    """
    remaining = iter(indexes)
    next_index: int | None = next(remaining)
    with objects.read(file.key) as blocks, suppress(_StoppedError):
        lines = input_lines(_until(blocks, is_stopped), line_bytes_max=LINE_BYTES_CEILING)
        for index, (_, offset, line) in enumerate(lines, file.first_index):
            if index == next_index:
                yield index, offset, line
                next_index = next(remaining, None)
                if next_index is None:
                    return


class _StoppedError(Exception):
    """Ends the blocks without a line: a regular end would yield the part of the last line."""


def _until(blocks: Iterable[bytes], is_stopped: Callable[[], bool]) -> Iterator[bytes]:
    for block in blocks:
        yield block
        if is_stopped():
            raise _StoppedError
