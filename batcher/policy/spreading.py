"""Which partition of a replica the next batch goes to: those of one burst share one.

A broker works by the request: one of the producer for each partition that a burst touches, and one
answer to the replica that waits for it. Kafka's own producer keeps to a partition for the same
reason (KIP-480, sticky partitioner).
"""

from collections.abc import Mapping, Sequence
from typing import Final

LINGER_S: Final[Mapping[str, float]] = {"bulk": 0.003, "interactive": 0.0}
"""By class: how long a batch may wait for others that go the same way."""

TOGETHER_S: Final = 0.003
"""How long a burst lasts: also online calls that come together share the requests they cost."""

TOGETHER_MAX: Final = 16
"""Batches of one burst on a partition: what is done there is committed behind the slowest only."""


class Spread:
    """Spreads bursts of batches over partitions."""

    def __init__(self) -> None:
        """No burst has begun."""
        self._bursts = 0
        self._began_s = float("-inf")
        self._count = 0

    def partition(self, partitions: Sequence[int], *, now_s: float) -> int:
        """Return where a batch goes that is sent now (monotonic seconds)."""
        if now_s - self._began_s >= TOGETHER_S or self._count == TOGETHER_MAX:
            self._bursts += 1
            self._began_s, self._count = now_s, 0
        self._count += 1
        return partitions[self._bursts % len(partitions)]
