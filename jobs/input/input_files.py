"""The input files of a job and which items are in which; most jobs have one."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar
from uuid import UUID

import sqlalchemy as sa

from jobs.expansion.cursors import ExpansionCursor
from jobs.tables.appended_files import job_inputs

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class InputFile:
    """An accepted file; its items follow each other in the job."""

    key: str  # of its object
    first_index: int
    size_bytes: int = 0  # 0: not known here


class InputFiles:
    """The files of a job in the order of their items."""

    def __init__(self, first_key: str, appended: Sequence[InputFile] = ()) -> None:
        """`appended` are in the order of their numbers."""
        self._files = [InputFile(first_key, 0), *appended]
        self._firsts = [file.first_index for file in self._files]

    def __iter__(self) -> Iterator[InputFile]:
        """Yield the files in order."""
        return iter(self._files)

    def at(self, item_index: int) -> InputFile:
        """Return the file that holds an item, or will: the last one for items to come."""
        return self._files[bisect_right(self._firsts, item_index) - 1]

    def left(self, item_index: int) -> int | None:
        """Return how many items of its file begin with this one; None: unknown, it is the last."""
        place = bisect_right(self._firsts, item_index)
        return None if place == len(self._firsts) else self._firsts[place] - item_index

    def start(self, cursor: ExpansionCursor) -> ExpansionCursor:
        """Return where to go on reading: a file that is new begins at its first byte."""
        if self.at(cursor.item_index).first_index < cursor.item_index:
            return cursor
        return ExpansionCursor(0, 0, cursor.item_index)

    def by_file(
        self, things: Iterable[T], index_of: Callable[[T], int]
    ) -> Iterator[tuple[InputFile, list[T]]]:
        """Yield things, which are in the order of their items, by the file that these are in."""
        for file, group in groupby(things, key=lambda thing: self.at(index_of(thing))):
            yield file, list(group)


def appended_files(
    connection: sa.Connection, job_ids: Collection[UUID]
) -> dict[UUID, list[InputFile]]:
    """Return the accepted files that were appended to jobs, in order; jobs without are absent."""
    its = job_inputs.c
    query = (
        sa.select(its.job_id, its.object_key, its.first_index, its.size_bytes)
        .where(its.job_id.in_(job_ids), its.state == "accepted")
        .order_by(its.job_id, its.number)
    )
    found: defaultdict[UUID, list[InputFile]] = defaultdict(list)
    for job_id, *file in connection.execute(query):
        found[job_id].append(InputFile(*file))
    return dict(found)
