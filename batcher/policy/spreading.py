"""Which partition of a replica the next batch goes to: those of one burst share one.

A broker works by the request: one of the producer for each partition that a burst touches, and one
answer to the replica that waits for it. Kafka's own producer keeps to a partition for the same
reason (KIP-480, sticky partitioner).
"""

from collections.abc import Mapping, Sequence
from typing import Final

LINGER_S: Final[Mapping[str, float]] = {"bulk": 0.003, "interactive": 0.0}
"""By class: how long a batch may wait for others that go the same way."""

TOGETHER_MAX: Final = 16
"""Batches of one burst on a partition: what is done there is committed behind the slowest only."""


class Spread:
    """Spreads bursts of batches over partitions."""

    def __init__(self, linger_s: float) -> None:
        """With `linger_s` 0 each batch is a burst."""
        self._linger_s = linger_s
        self._bursts = 0
        self._began_s = float("-inf")
        self._count = 0

    def partition(self, partitions: Sequence[int], *, now_s: float) -> int:
        """Return where a batch goes that is sent now (monotonic seconds)."""
        if now_s - self._began_s >= self._linger_s or self._count == TOGETHER_MAX:
            self._bursts += 1
            self._began_s, self._count = now_s, 0
        self._count += 1
        return partitions[self._bursts % len(partitions)]
