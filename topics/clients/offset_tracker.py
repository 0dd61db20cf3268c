"""Tracks which offsets may be committed: the end of each partition's finished prefix.

A prefix follows delivery order, so the offset gaps of a compacted topic do no harm.
"""

from collections import deque

Partition = tuple[str, int]
"""Topic without prefix, and partition number."""


class OffsetTracker:
    """Tracks delivered records until all earlier ones of their partition are finished."""

    def __init__(self) -> None:
        self._open: dict[Partition, deque[int]] = {}
        self._finished: dict[Partition, set[int]] = {}
        self._next: dict[Partition, int] = {}

    def track(self, partition: Partition, offset: int) -> None:
        """Add a delivered record; records of one partition come in offset order."""
        self._open.setdefault(partition, deque()).append(offset)

    def mark_finished(self, partition: Partition, offset: int) -> None:
        """Mark a record whose effect is durable. One of a dropped partition is ignored."""
        open_offsets = self._open.get(partition)
        if not open_offsets or offset < open_offsets[0]:
            return
        finished = self._finished.setdefault(partition, set())
        finished.add(offset)
        while open_offsets and open_offsets[0] in finished:
            first = open_offsets.popleft()
            finished.discard(first)
            self._next[partition] = first + 1

    def committable(self) -> dict[Partition, int]:
        """Return the next offset of each partition that has grown since its last commit."""
        return dict(self._next)

    def mark_committed(self, next_offsets: dict[Partition, int]) -> None:
        """Mark offsets that the broker has committed; others stay committable."""
        for partition, offset in next_offsets.items():
            if self._next.get(partition) == offset:
                del self._next[partition]

    def drop(self, partitions: list[Partition]) -> None:
        """Forget revoked partitions; their open records are delivered again to the new owner."""
        for partition in partitions:
            self._open.pop(partition, None)
            self._finished.pop(partition, None)
            self._next.pop(partition, None)

    def pinning(self, partition: Partition, count_min: int) -> list[int]:
        """Return unfinished records behind which at least `count_min` finished ones wait."""
        open_offsets, finished = self._open.get(partition, ()), self._finished.get(partition, ())
        excess = len(finished) - count_min  # finished records that may lie before the last of them
        found: list[int] = []
        if excess < 0:
            return found
        for offset in open_offsets:
            if offset not in finished:
                found.append(offset)
            elif excess == 0:
                break
            else:
                excess -= 1
        return found

    def in_flight(self, partition: Partition) -> int:
        """Return the number of records from the lowest unfinished one on."""
        return len(self._open.get(partition, ()))
