"""Closes that need more than one transaction: a slice at a time, in turn, between other records.

A close of a million items takes seconds, and the results of all other jobs must not wait for it.
The first slice forbids further outcomes of its job, so what comes behind it on the log may be
judged before its last. Until then its offset is not committed: whoever owns the partition after us
reads the close again and goes on where rows are missing.
"""

from collections import deque
from collections.abc import Collection, Mapping
from typing import NamedTuple

from results.closing import JobCloser
from topics.offsets import Partition
from topics.records import Close


class _Open(NamedTuple):
    partition: Partition
    offset: int
    close: Close
    first: int  # of the indexes that no slice has looked at


class OpenCloses:
    """The closes that one writer has begun; one thread uses it."""

    def __init__(self, closer: JobCloser) -> None:
        """Nothing is open yet."""
        self._closer = closer
        self._open: deque[_Open] = deque()

    def __len__(self) -> int:
        """Return how many are open."""
        return len(self._open)

    def begin(self, partition: Partition, offset: int, close: Close) -> None:
        """Do the first slice of a close that lies at `offset`. Raises one of DATABASE_AWAY."""
        self._slice(_Open(partition, offset, close, 0))

    def step(self) -> None:
        """Do one slice of the close that has waited longest. Raises one of DATABASE_AWAY.

        Nothing when none is open: its partition may be lost between two tries.
        """
        if self._open:
            self._slice(self._open[0])
            self._open.popleft()

    def committable(self, finished: Mapping[Partition, int]) -> dict[Partition, int]:
        """Return these next offsets, none behind a close that is open."""
        offsets = dict(finished)
        for one in self._open:
            if one.partition in offsets:
                offsets[one.partition] = min(offsets[one.partition], one.offset)
        return offsets

    def forget(self, partitions: Collection[Partition]) -> None:
        """Leave the closes of these partitions to their new owners."""
        self._open = deque(one for one in self._open if one.partition not in partitions)

    def _slice(self, one: _Open) -> None:
        first = self._closer.step(one.close, one.first)
        if first is not None:
            self._open.append(one._replace(first=first))
