"""Credit-based flow control: how many items may be sent to which replica (RFC 9113, 5.2).

A replica grants this batcher a cumulative number of items per epoch. A grant is void on a new
epoch, when the replica reports itself unavailable, and after a silence; items sent still count.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from topics.records.records import Capacity

STALE_S = 1.5
"""Age from which a replica's last record is late: it publishes every second or more often."""

SUFFICIENT_CREDIT_DIVISOR = 4
"""Credit is sufficient from a quarter of the replica's concurrency."""

FORGET_AFTER_S = 24 * 3600.0
"""Silence after which a replica and its count are forgotten; its topic retains no longer past."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaCredit:
    """The credit of one replica epoch."""

    capacity: Capacity
    granted: int  # cumulative items for this batcher
    sent: int  # items of the grant that were sent
    read_s: float  # monotonic: when its last record was read
    free_since_s: float  # when its credit last grew from nothing

    @property
    def free(self) -> int:
        """Items that the grant still allows, at least 0, however old the record is."""
        return max(0, self.granted - self.sent) if self.capacity.available else 0

    @property
    def idle(self) -> bool:
        """Whether the replica has credit for its whole concurrency."""
        return self.free >= max(1, self.capacity.concurrency)

    def is_preferred(self, now_s: float) -> bool:
        """Whether the replica runs no suspect items, is not late, and has sufficient credit.

        Little credit must not attract a batch: items would wait although another replica has more.
        """
        is_safe = not self.capacity.in_danger and now_s - self.read_s <= STALE_S
        return is_safe and self.free * SUFFICIENT_CREDIT_DIVISOR >= self.capacity.concurrency


class CreditLedger:
    """The grants to one batcher, by replica."""

    def __init__(
        self,
        batcher_id: str,
        job_class: str,
        *,
        silence_s_max: float,
        is_reachable: Callable[[Capacity], bool] = lambda _: True,
    ) -> None:
        """`batcher_id` is new at each start: a grant counts from the batcher's first item on.

        `is_reachable` returns whether a partition of the replica is available.
        """
        self._is_reachable = is_reachable
        self._batcher_id = batcher_id
        self._job_class = job_class
        self._silence_s_max = silence_s_max
        self._replicas: dict[str, ReplicaCredit] = {}
        self._candidates: dict[str, set[str]] = {}  # by pool: replicas that may have credit

    @property
    def pools(self) -> frozenset[str]:
        """Every pool with a known replica."""
        return frozenset(known.capacity.pool for known in self._replicas.values())

    def record_capacity(self, capacity: Capacity, *, now_s: float) -> None:
        """Apply a replica's record; older epochs and the other job class are ignored."""
        known = self._replicas.get(capacity.replica_id)
        if capacity.job_class != self._job_class:
            return
        if known is not None and capacity.epoch < known.capacity.epoch:
            return
        same_epoch = known is not None and capacity.epoch == known.capacity.epoch
        updated = ReplicaCredit(
            capacity=capacity,
            granted=capacity.granted.get(self._batcher_id, 0),
            sent=known.sent if known is not None and same_epoch else 0,
            read_s=now_s,
            free_since_s=now_s,
        )
        if known is not None and same_epoch and self._free(known, now_s):
            updated = replace(updated, free_since_s=known.free_since_s)
        if known is not None:
            self._candidates[known.capacity.pool].discard(capacity.replica_id)
        self._candidates.setdefault(capacity.pool, set()).add(capacity.replica_id)
        self._replicas[capacity.replica_id] = updated

    def available(self, replica_id: str, *, now_s: float) -> int:
        """Return the items that may be sent to the replica now."""
        known = self._replicas.get(replica_id)
        return 0 if known is None else self._free(known, now_s)

    def best(self, pool: str, *, now_s: float) -> ReplicaCredit | None:
        """Return the replica of `pool` that gets the next batch, or None if none has credit.

        Preferred replicas come first, then idle ones, then those with most credit. The items of a
        replica that ends its process would have to wait for another owner.
        """
        free = [
            self._replicas[replica]
            for replica in self._candidates.get(pool, ())
            if self._free(self._replicas[replica], now_s)
            and self._is_reachable(self._replicas[replica].capacity)
        ]
        return max(
            free, key=lambda one: (one.is_preferred(now_s), one.idle, one.free), default=None
        )

    def spend(self, replica_id: str, item_count: int, *, now_s: float) -> None:
        """Deduct items that are sent to the replica; never more than `available`."""
        known = self._replicas[replica_id]
        assert 0 < item_count <= self._free(known, now_s)
        self._replicas[replica_id] = replace(known, sent=known.sent + item_count)

    def refund(self, sent_to: Capacity, item_count: int) -> None:
        """Return the credit of items that did not reach the replica; a negative count spends it.

        Items of an earlier epoch have no credit any more.
        """
        known = self._replicas.get(sent_to.replica_id)
        if known is not None and known.capacity.epoch == sent_to.epoch:
            self._replicas[sent_to.replica_id] = replace(known, sent=known.sent - item_count)

    def forget_silent_replicas(self, *, now_s: float) -> None:
        """Exclude silent replicas from `best`, and forget those that were silent for a day.

        Each restart of a replica is a new replica, and `best` runs for every batch.
        """
        for replicas in self._candidates.values():
            replicas -= {r for r in replicas if self._is_silent(self._replicas[r], now_s)}
        for replica_id, known in list(self._replicas.items()):
            if now_s - known.read_s > FORGET_AFTER_S:
                del self._replicas[replica_id]
                self._candidates[known.capacity.pool].discard(replica_id)

    def candidates(self, pool: str) -> frozenset[str]:
        """Return the replicas of `pool` that `best` considers."""
        return frozenset(self._candidates.get(pool, ()))

    def _free(self, known: ReplicaCredit, now_s: float) -> int:
        if self._is_silent(known, now_s) or not known.capacity.partitions:
            return 0
        return known.free

    def _is_silent(self, known: ReplicaCredit, now_s: float) -> bool:
        return now_s - known.read_s > self._silence_s_max
