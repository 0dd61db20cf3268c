"""Which replicas are lost: they publish neither capacity nor replies any more."""

from typing import Final

LOST_S: Final = 20.0
"""Silence from which a replica is lost. Before that the next owner of its partitions asks for its
streams, unless the partitions had moved while the streams ran on."""

GAP_S: Final = 3.0
"""Time without any record from which silence is the reader's. A replica publishes every second."""

FORGET_AFTER_S: Final = 600.0
"""Silence after which a replica is forgotten. Each start of a replica is a new one."""


class ReplicaLiveness:
    """When each replica last published.

    The thread that reads `capacity` calls `record_capacity`, the event loop the other methods.
    """

    def __init__(self) -> None:
        """Start without replicas."""
        self._last_s: dict[str, float] = {}
        self._newest_s = float("-inf")  # of any replica
        self._since_s = float("-inf")  # the end of the last gap
        self._forgot_s = float("-inf")

    def record_capacity(self, replica_id: str, *, now_s: float) -> None:
        """Record that capacity of the replica arrived now."""
        if now_s - self._newest_s > GAP_S:
            self._since_s = now_s
        self._newest_s = self._last_s[replica_id] = now_s
        if now_s - self._forgot_s > FORGET_AFTER_S:
            self._forgot_s = now_s
            for silent in [r for r, at_s in self._last_s.items() if now_s - at_s > FORGET_AFTER_S]:
                del self._last_s[silent]

    def record_replies(self, replica_id: str, *, now_s: float) -> None:
        """Record that replies of the replica arrived now: it may be unable to publish capacity."""
        if replica_id in self._last_s:
            self._last_s[replica_id] = now_s

    def is_lost(self, replica_id: str, *, now_s: float, unreliable_s: float) -> bool:
        """Whether the executions of the replica are lost; False for an unknown one.

        `unreliable_s`: when silence was last the fault of this process.
        """
        last_s = self._last_s.get(replica_id, now_s)
        return now_s - max(last_s, unreliable_s, self._since_s) > LOST_S
