"""The input files of a job and the items that each holds; most jobs have one file."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar
from uuid import UUID

import sqlalchemy as sa

from jobs.expansion.cursors import ExpansionCursor
from jobs.tables.files import job_inputs

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class InputFile:
    """An accepted file; its items have consecutive indexes in the job."""

    key: str  # of its object
    first_index: int
    size_bytes: int = 0  # 0: not known


class InputFiles:
    """The files of a job in the order of their items."""

    def __init__(self, first_key: str, appended: Sequence[InputFile] = ()) -> None:
        """`appended` is ordered by number."""
        self._files = [InputFile(first_key, 0), *appended]
        self._firsts = [file.first_index for file in self._files]

    def __iter__(self) -> Iterator[InputFile]:
        """Yield the files in order."""
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
        .where(columns.job_id.in_(job_ids), columns.state == "accepted")
        .order_by(columns.job_id, columns.number)
    )
    found: defaultdict[UUID, list[InputFile]] = defaultdict(list)
    for job_id, *file in connection.execute(query):
        found[job_id].append(InputFile(*file))
    return dict(found)
