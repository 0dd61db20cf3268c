"""Which partition of a replica the next batch goes to: those of one burst share one.

A broker works by the request: one of the producer for each partition that a burst touches, and one
answer to the replica that waits for it. Kafka's own producer keeps to a partition for the same
reason (KIP-480, sticky partitioner).
"""

from collections.abc import Callable, Sequence
from typing import Final

STICKY_S: Final = 0.003
"""How long a burst lasts. Bulk waits as long for more that goes the same way; online calls that
come together share the requests that they cost, and wait for nobody."""

STICKY_BATCHES_MAX: Final = 4
"""Batches in a row on a partition: what ends there is committed behind the slowest only."""

_PLACES: Final = 1 << 16


class StickyPartitioner:
    """Spreads bursts of batches over partitions."""

    def __init__(self, choose: Callable[[int], int]) -> None:
        """`choose` returns a number below its argument, at random: refills come in step."""
        self._choose = choose
        self._place = 0
        self._began_s = float("-inf")
        self._count = 0

    def partition(self, partitions: Sequence[int], *, now_s: float) -> int:
        """Return where a batch goes that is sent now (monotonic seconds)."""
        if now_s - self._began_s >= STICKY_S:
            self._place = self._choose(_PLACES)
            self._began_s, self._count = now_s, 0
        place = self._place + self._count // STICKY_BATCHES_MAX
        self._count += 1
        return partitions[place % len(partitions)]
