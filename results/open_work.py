"""Work that needs more than one transaction: a step at a time, in turn, between other records.

A close of a million items takes seconds, and so do a million copies of one; the results of all
other jobs must not wait for them. Until the last step the offsets of its records are not committed:
whoever owns a partition after us reads them again and goes on where rows are missing.
"""

import threading
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from topics.offsets import Partition


class Step(Protocol):
    """One transaction, or a look that writes nothing; doing it again changes nothing."""

    def __call__(self) -> "list[Step]":
        """Do it and return what follows, in order. Raises one of DATABASE_AWAY."""
        ...


@dataclass(slots=True, eq=False)
class _Open:
    offsets: dict[Partition, int]  # of the first of its records in each partition
    job_ids: frozenset[UUID]
    steps: deque[Step]


class OpenWork:
    """What one writer has begun; one thread uses it."""

    def __init__(self) -> None:
        """Nothing is open yet."""
        self._open: deque[_Open] = deque()

    def __len__(self) -> int:
        """Return how many are open."""
        return len(self._open)

    def begin(
        self, offsets: Mapping[Partition, int], job_ids: Collection[UUID], steps: Iterable[Step]
    ) -> None:
        """Do the first step of what records of these jobs, the first at `offsets`, ask for."""
        self._go_on(_Open(dict(offsets), frozenset(job_ids), deque(steps)))

    def is_open(self, job_id: UUID) -> bool:
        """Whether there is work left of a job."""
        return any(job_id in one.job_ids for one in self._open)

    def step(self, job_id: UUID | None = None) -> None:
        """Do one step of what has waited longest, of one job or all.

        Raises what the step raises, and stays. Nothing when none is open: its partitions may be
        lost between two tries.
        """
        for one in self._open:
            if job_id is None or job_id in one.job_ids:
                self._go_on(one)
                return

    def committable(self, finished: Mapping[Partition, int]) -> dict[Partition, int]:
        """Return these next offsets, none behind the records of what is open."""
        offsets = dict(finished)
        for one in self._open:
            for partition, offset in one.offsets.items():
                if partition in offsets:
                    offsets[partition] = min(offsets[partition], offset)
        return offsets

    def forget(self, partitions: Collection[Partition]) -> None:
        """Leave these partitions to their new owners."""
        for one in self._open:
            for partition in partitions:
                one.offsets.pop(partition, None)
        self._open = deque(one for one in self._open if one.offsets)

    def _go_on(self, one: _Open) -> None:
        if one.steps:
            follow = one.steps[0]()
            one.steps.popleft()
            one.steps.extendleft(reversed(follow))
        if one in self._open:
            self._open.remove(one)
        if one.steps:
            self._open.append(one)


def do_all(steps: Iterable[Step], stop: threading.Event) -> bool:
    """Do steps and what follows from them; False when `stop` came first."""
    left = deque(steps)
    while left and not stop.is_set():
        left.extendleft(reversed(left.popleft()()))
    return not left
