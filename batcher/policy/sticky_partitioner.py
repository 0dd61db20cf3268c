"""Sticky partitioning: batches of one burst share a partition of their replica (KIP-480).

The broker's cost is per request: one produce request for each partition that a burst touches, and
one fetch response to the replica that waits for it.
"""

from collections.abc import Callable, Sequence
from typing import Final

STICKY_S: Final = 0.003
"""Length of a burst. The bulk producer lingers as long; online calls that arrive together share
their requests without lingering."""

STICKY_BATCHES_MAX: Final = 4
"""Consecutive batches on one partition: a finished batch is committed only after slower ones before
it."""

_RANDOM_RANGE: Final = 1 << 16


class StickyPartitioner:
    """Spreads bursts of batches over partitions."""

    def __init__(self, choose: Callable[[int], int]) -> None:
        """`choose` returns a random number below its argument: batchers must not choose in step."""
        self._choose = choose
        self._first = 0
        self._began_s = float("-inf")
        self._count = 0

    def partition(self, partitions: Sequence[int], *, now_s: float) -> int:
        """Return the partition of a batch that is sent at `now_s` (monotonic)."""
        if now_s - self._began_s >= STICKY_S:
            self._first = self._choose(_RANDOM_RANGE)
            self._began_s, self._count = now_s, 0
        position = self._first + self._count // STICKY_BATCHES_MAX
        self._count += 1
        return partitions[position % len(partitions)]
