"""Which replicas are lost, although other replicas of their pool are live."""

from dataclasses import dataclass
from typing import Final

from topics.records.records import Capacity

LOST_S: Final = 20.0
"""Silence from which a replica is lost: the consumer group removes a member after 6 s by default,
and the next owner of its partitions asks for its calls when the rebalance has ended."""

FORGET_AFTER_S: Final = 600.0
"""Silence after which a replica is forgotten. Each start of a replica is a new one."""


@dataclass(slots=True)
class _Sighting:
    pool: str
    first_s: float  # monotonic: its first report
    last_s: float


class ReplicaLiveness:
    """When each replica reported. One thread records, any thread may call `is_lost`."""

    def __init__(self) -> None:
        """Start without replicas."""
        self._seen: dict[str, _Sighting] = {}

    def record(self, report: Capacity, *, now_s: float) -> None:
        """Record a report that arrived now. A replica that ended in order has lost no calls."""
        if report.concurrency == 0:
            self._seen.pop(report.replica_id, None)
        elif known := self._seen.get(report.replica_id):
            known.last_s = now_s
        else:
            self._seen[report.replica_id] = _Sighting(report.pool, now_s, now_s)

    def forget_silent_replicas(self, *, now_s: float) -> None:
        """Forget the replicas that were silent for `FORGET_AFTER_S`."""
        self._seen = {
            replica_id: seen
            for replica_id, seen in self._seen.items()
            if now_s - seen.last_s <= FORGET_AFTER_S
        }

    def is_lost(self, replica_id: str, *, now_s: float, unreliable_s: float) -> bool:
        """Whether the calls that the replica executes are lost.

        `unreliable_s`: when silence was last this process's fault. The next owner of a lost
        replica's partitions asks for its calls, unless the partitions had moved before, while the
        calls ran on: then their offsets are committed and nobody asks. So the replica must be
        silent for `LOST_S`, and another replica of its pool must have reported for half of that.
        """
        lost = self._seen.get(replica_id)
        if lost is None or now_s - max(lost.last_s, unreliable_s) <= LOST_S:
            return False
        return any(
            seen.pool == lost.pool
            and seen.last_s - seen.first_s >= LOST_S / 2
            and now_s - seen.last_s <= LOST_S / 2
            for seen in list(self._seen.values())
        )
