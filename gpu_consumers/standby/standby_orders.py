"""Whether a replica in standby joins its groups, by the records of `scaling`. Pure.

It joins when the autoscaler names it. When nobody scales its pool it joins, too: a replica more
costs less than a pool without one. Times are monotonic seconds of this process, at which a record
was read: the clock of the autoscaler does not count.
"""

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from topics.records.scaling import AutoscalerEpoch, PoolScaling

SILENCE_S_MAX: Final = 15.0
"""Without a record of the autoscaler for so long nobody scales the pool. It writes one every 5 s,
and another takes over within 10 s."""

JOIN_SPREAD_S: Final = 15.0
"""Time over which replicas that hear nothing join. Each join is a rebalance of its group, and all
of them heard the last record at the same moment."""

_OBSERVE: Final = "observe"


class JoinReason(StrEnum):
    """Why a replica in standby joins; the value is a metric's label."""

    ORDERED = "ordered"  # the autoscaler named it
    SILENCE = "silence"  # no autoscaler scales its pool


def silence_s(replica_id: str) -> float:
    """Return after how long a silence a replica joins, evenly spread by its id.

    From `SILENCE_S_MAX` to `JOIN_SPREAD_S` more; the same in each process.
    """
    digest = hashlib.blake2b(replica_id.encode(), digest_size=4).digest()
    return SILENCE_S_MAX + JOIN_SPREAD_S * int.from_bytes(digest) / 2**32


@dataclass(slots=True)
class StandbyOrders:
    """What the autoscaler has said so far to one replica of one pool."""

    pool: str
    replica_id: str
    heard_s: float  # when this replica began to listen, or last heard of a scaler of its pool
    _epoch: int = 0  # the highest
    _is_ordered: bool = False

    def apply_epoch(self, record: AutoscalerEpoch, *, now_s: float) -> None:
        """Note which autoscaler decides. Only a new one counts as heard.

        An autoscaler that lives but whose policy does not name the pool scales it as little as one
        that is dead.
        """
        if record.epoch > self._epoch:
            self._epoch, self.heard_s = record.epoch, now_s

    def apply_scaling(self, record: PoolScaling, *, now_s: float) -> None:
        """Apply the decision about a pool; one of another pool or a lower epoch says nothing.

        A dry run (`observe`) wakes nobody, so it counts as little as no autoscaler.
        """
        if record.epoch < self._epoch or record.pool != self.pool:
            return
        self._epoch = record.epoch
        if record.mode == _OBSERVE:
            return
        self.heard_s = now_s
        self._is_ordered = self.replica_id in record.awake

    def join_reason(self, *, now_s: float) -> JoinReason | None:
        """Return why to join now; None to sleep on."""
        if self._is_ordered:
            return JoinReason.ORDERED
        is_silent = now_s - self.heard_s >= silence_s(self.replica_id)
        return JoinReason.SILENCE if is_silent else None
