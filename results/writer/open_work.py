"""Runs work that needs several transactions step by step, interleaved with other records.

A close of a million items takes a minute, and so do a million copies of one item; the results of
other jobs do not wait for them. A close that must follow such copies is open work that starts when
they end. The offsets of the records are not committed before the last step, so the next owner of a
partition reads them again; a repeated close or copy continues where rows are missing.
"""

import threading
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol
from uuid import UUID

from topics.clients.offset_tracker import Partition

ROUND_ROBIN_MAX: Final = 32
"""Above it the oldest work runs to its end: round robin would end all of it late."""


class WorkStep(Protocol):
    """One transaction, or a search that writes nothing; repeating it changes nothing."""

    def __call__(self) -> "list[WorkStep]":
        """Run the step and return the steps that follow, in order.

        Raises one of DATABASE_UNAVAILABLE.
        """


@dataclass(slots=True, eq=False)
class _Open:
    offsets: dict[Partition, int]  # of its first record in each partition
    job_ids: frozenset[UUID]
    steps: deque[WorkStep]
    item_count: int
    predecessors: "tuple[_Open, ...]" = ()  # must end first; empty once this has started

    @property
    def is_blocked(self) -> bool:
        """Whether a predecessor has steps left."""
        return any(work.steps for work in self.predecessors)


class OpenWork:
    """The unfinished work of one writer. Not thread-safe."""

    def __init__(self) -> None:
        self._open: deque[_Open] = deque()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def item_count(self) -> int:
        """Return how many items the open work holds in memory; a close holds none."""
        return sum(work.item_count for work in self._open)

    def add(
        self,
        offsets: Mapping[Partition, int],
        job_ids: Collection[UUID],
        steps: Iterable[WorkStep],
        *,
        item_count: int = 0,
    ) -> None:
        """Run the first step now and keep the others.

        `offsets` are those of the first records that the work comes from, `item_count` is the
        number of items that the steps hold in memory.
        """
        work = _Open(dict(offsets), frozenset(job_ids), deque(steps), item_count)
        _run_first(work)
        if work.steps:
            self._open.append(work)

    def add_behind(
        self, offsets: Mapping[Partition, int], job_id: UUID, steps: Iterable[WorkStep]
    ) -> None:
        """Add work of a job that starts when all its present open work has ended."""
        predecessors = tuple(work for work in self._open if job_id in work.job_ids)
        self._open.append(_Open(dict(offsets), frozenset({job_id}), deque(steps), 0, predecessors))

    def is_open(self, job_id: UUID) -> bool:
        """Whether a job has unfinished work."""
        return any(job_id in work.job_ids for work in self._open)

    @property
    def waiting_jobs(self) -> set[UUID]:
        """The jobs with work that has not started, blocked or not."""
        return {job_id for work in self._open if work.predecessors for job_id in work.job_ids}

    def run_step(self) -> None:
        """Run one step of the work that has waited longest and is not blocked.

        Raises what the step raises and keeps it. Does nothing without open work, since a partition
        can be revoked between two attempts.
        """
        for work in self._open:
            if work.is_blocked:
                continue
            _run_first(work)
            work.predecessors = ()
            if not work.steps:
                self._open.remove(work)
            elif len(self._open) <= ROUND_ROBIN_MAX:
                self._open.remove(work)
                self._open.append(work)
            return

    def committable(self, finished: Mapping[Partition, int]) -> dict[Partition, int]:
        """Return the next offsets of `finished`, none of them past a record of open work."""
        offsets = dict(finished)
        for work in self._open:
            for partition, offset in work.offsets.items():
                if partition in offsets:
                    offsets[partition] = min(offsets[partition], offset)
        return offsets

    def discard(self, partitions: Collection[Partition]) -> None:
        """Drop the work of revoked partitions: their new owner repeats it."""
        for work in self._open:
            for partition in partitions:
                work.offsets.pop(partition, None)
            if not work.offsets:
                work.steps.clear()
        self._open = deque(work for work in self._open if work.offsets)


def run_all(steps: Iterable[WorkStep], stop: threading.Event) -> bool:
    """Run steps and those that follow from them; False when `stop` came first."""
    left = deque(steps)
    while left and not stop.is_set():
        left.extendleft(reversed(left.popleft()()))
    return not left


def _run_first(work: _Open) -> None:
    if work.steps:
        follow = work.steps[0]()
        work.steps.popleft()
        work.steps.extendleft(reversed(follow))
