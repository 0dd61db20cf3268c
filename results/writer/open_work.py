"""Work that needs more than one transaction: a step at a time, in turn, between other records.

A close of a million items takes a minute, and so do a million copies of one; the results of all
other jobs must not wait for them. Nor for a close that has to come behind such copies: it is open
work that begins when they have ended. Until the last step the offsets of its records are not
committed: whoever owns a partition after us reads them again. A close or copies that this finds
begun go on where rows are missing.
"""

import threading
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol
from uuid import UUID

from topics.clients.offsets import Partition

CROWD: Final = 32
"""Beyond, works end one after another: in turn, none would before nearly all have."""


class WorkStep(Protocol):
    """One transaction, or a look that writes nothing; doing it again changes nothing."""

    def __call__(self) -> "list[WorkStep]":
        """Do it and return what follows, in order. Raises one of DATABASE_AWAY."""
        ...


@dataclass(slots=True, eq=False)
class _Open:
    offsets: dict[Partition, int]  # of the first of its records in each partition
    job_ids: frozenset[UUID]
    steps: deque[WorkStep]
    item_count: int
    behind: "tuple[_Open, ...]" = ()  # what ends before it begins; nothing once it has begun

    @property
    def is_held_up(self) -> bool:
        """Whether something that it is behind has steps left."""
        return any(one.steps for one in self.behind)


class OpenWork:
    """What one writer has begun; one thread uses it."""

    def __init__(self) -> None:
        """Nothing is open yet."""
        self._open: deque[_Open] = deque()

    def __len__(self) -> int:
        """Return how many are open."""
        return len(self._open)

    @property
    def item_count(self) -> int:
        """Return the items that open work has in memory; a close has none."""
        return sum(one.item_count for one in self._open)

    def add(
        self,
        offsets: Mapping[Partition, int],
        job_ids: Collection[UUID],
        steps: Iterable[WorkStep],
        *,
        item_count: int = 0,
    ) -> None:
        """Do the first step of what records of these jobs, the first at `offsets`, ask for.

        `item_count`: how many items the steps have in memory.
        """
        one = _Open(dict(offsets), frozenset(job_ids), deque(steps), item_count)
        _do_first(one)
        if one.steps:
            self._open.append(one)

    def add_behind(
        self, offsets: Mapping[Partition, int], job_id: UUID, steps: Iterable[WorkStep]
    ) -> None:
        """Let work of one job begin when all that is open of it has ended."""
        behind = tuple(one for one in self._open if job_id in one.job_ids)
        self._open.append(_Open(dict(offsets), frozenset({job_id}), deque(steps), 0, behind))

    def is_open(self, job_id: UUID) -> bool:
        """Whether there is work left of a job."""
        return any(job_id in one.job_ids for one in self._open)

    @property
    def waiting_jobs(self) -> set[UUID]:
        """The jobs that have work which has not begun, whether it could by now or not."""
        return {job_id for one in self._open if one.behind for job_id in one.job_ids}

    def run_step(self) -> None:
        """Do one step of what has waited longest and may go on; in a crowd it stays first.

        Raises what the step raises, and stays. Nothing when none is open: its partitions may be
        lost between two tries.
        """
        for one in self._open:
            if one.is_held_up:
                continue
            _do_first(one)
            one.behind = ()
            if not one.steps:
                self._open.remove(one)
            elif len(self._open) <= CROWD:
                self._open.remove(one)
                self._open.append(one)
            return

    def committable(self, finished: Mapping[Partition, int]) -> dict[Partition, int]:
        """Return these next offsets, none behind the records of what is open."""
        offsets = dict(finished)
        for one in self._open:
            for partition, offset in one.offsets.items():
                if partition in offsets:
                    offsets[partition] = min(offsets[partition], offset)
        return offsets

    def discard(self, partitions: Collection[Partition]) -> None:
        """Leave these partitions to their new owners."""
        for one in self._open:
            for partition in partitions:
                one.offsets.pop(partition, None)
            if not one.offsets:
                one.steps.clear()
        self._open = deque(one for one in self._open if one.offsets)


def _do_first(one: _Open) -> None:
    if one.steps:
        follow = one.steps[0]()
        one.steps.popleft()
        one.steps.extendleft(reversed(follow))


def run_all(steps: Iterable[WorkStep], stop: threading.Event) -> bool:
    """Do steps and what follows from them; False when `stop` came first."""
    left = deque(steps)
    while left and not stop.is_set():
        left.extendleft(reversed(left.popleft()()))
    return not left
