"""Which offset may be committed: the one after the finished prefix of each partition.

Prefixes follow delivery order, not arithmetic, so gaps of compaction do no harm.
"""

from collections import deque

Partition = tuple[str, int]
"""Topic without prefix, and partition number."""


class OffsetTracker:
    """Remembers records in delivery order until all earlier ones of a partition are finished."""

    def __init__(self) -> None:
        """Track nothing."""
        self._open: dict[Partition, deque[int]] = {}
        self._done: dict[Partition, set[int]] = {}
        self._next: dict[Partition, int] = {}

    def track(self, partition: Partition, offset: int) -> None:
        """A record was taken over; records of one partition start in offset order."""
        self._open.setdefault(partition, deque()).append(offset)

    def mark_finished(self, partition: Partition, offset: int) -> None:
        """A record's effect is durable. One of a dropped partition is ignored."""
        waiting = self._open.get(partition)
        if not waiting or offset < waiting[0]:
            return
        done = self._done.setdefault(partition, set())
        done.add(offset)
        while waiting and waiting[0] in done:
            first = waiting.popleft()
            done.discard(first)
            self._next[partition] = first + 1

    def committable(self) -> dict[Partition, int]:
        """Return the next offsets that grew since they were last `committed`."""
        return dict(self._next)

    def mark_committed(self, next_offsets: dict[Partition, int]) -> None:
        """The broker has taken these; what is not reported here is offered again."""
        for partition, offset in next_offsets.items():
            if self._next.get(partition) == offset:
                del self._next[partition]

    def drop(self, partitions: list[Partition]) -> None:
        """Forget partitions that are no longer ours; they are delivered again elsewhere."""
        for partition in partitions:
            self._open.pop(partition, None)
            self._done.pop(partition, None)
            self._next.pop(partition, None)

    def in_flight(self, partition: Partition) -> int:
        """Return how many records from the lowest unfinished one on were started."""
        return len(self._open.get(partition, ()))
