"""How much may be sent and where: grants of replicas, as flow-control windows (RFC 9113, 5.2).

A replica grants this batcher a cumulative number of items per epoch. A grant is void on a new
epoch, when the replica says that it is away, and after a silence; what was sent still counts.
"""

from dataclasses import dataclass, replace

from topics.records.records import Capacity

STALE_S = 1.5
"""After so long a word of a replica is late: it says something every second, or more often."""

SUFFICIENT_CREDIT_DIVISOR = 4
"""Credit for one in so many of the items that a replica runs at once is room."""

FORGET_AFTER_S = 24 * 3600.0
"""Silence after which a replica is forgotten with its count; its topic holds no longer past."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaCredit:
    """What is known of one replica epoch."""

    capacity: Capacity
    granted: int  # cumulative items for this batcher
    sent: int  # of them, items that left
    heard_s: float
    free_since_s: float  # when its credit last grew from nothing

    @property
    def free(self) -> int:
        """Items that the grant still allows, silence aside; a shrunken grant is no debt."""
        return max(0, self.granted - self.sent) if self.capacity.available else 0

    @property
    def idle(self) -> bool:
        """Whether the replica could run its whole concurrency more."""
        return self.free >= max(1, self.capacity.concurrency)

    def is_calm(self, now_s: float) -> bool:
        """Whether nothing tells that its process may end, or has, and there is room to speak of.

        For a rest of credit no batch may close: whoever has more must not wait behind it.
        """
        is_safe = not self.capacity.in_danger and now_s - self.heard_s <= STALE_S
        return is_safe and self.free * SUFFICIENT_CREDIT_DIVISOR >= self.capacity.concurrency


class CreditLedger:
    """The grants to one batcher, by replica."""

    def __init__(self, batcher_id: str, job_class: str, *, silence_s_max: float) -> None:
        """`batcher_id` is new at each start: a grant counts from the batcher's first item on."""
        self._batcher_id = batcher_id
        self._job_class = job_class
        self._silence_s_max = silence_s_max
        self._replicas: dict[str, ReplicaCredit] = {}
        self._speaking: dict[str, set[str]] = {}  # by pool: the few that may have credit

    @property
    def pools(self) -> frozenset[str]:
        """Every pool of which a replica was heard."""
        return frozenset(known.capacity.pool for known in self._replicas.values())

    def heard(self, capacity: Capacity, *, now_s: float) -> None:
        """A replica said what it can take; older epochs and the other class are ignored."""
        known = self._replicas.get(capacity.replica_id)
        if capacity.job_class != self._job_class:
            return
        if known is not None and capacity.epoch < known.capacity.epoch:
            return
        same = known is not None and capacity.epoch == known.capacity.epoch
        heard = ReplicaCredit(
            capacity=capacity,
            granted=capacity.granted.get(self._batcher_id, 0),
            sent=known.sent if known is not None and same else 0,
            heard_s=now_s,
            free_since_s=now_s,
        )
        if known is not None and same and self._free(known, now_s):
            heard = replace(heard, free_since_s=known.free_since_s)
        if known is not None:
            self._speaking[known.capacity.pool].discard(capacity.replica_id)
        self._speaking.setdefault(capacity.pool, set()).add(capacity.replica_id)
        self._replicas[capacity.replica_id] = heard

    def available(self, replica_id: str, *, now_s: float) -> int:
        """Return the items that may be sent to the replica now."""
        known = self._replicas.get(replica_id)
        return 0 if known is None else self._free(known, now_s)

    def best(self, pool: str, *, now_s: float) -> ReplicaCredit | None:
        """Return the replica of `pool` that is best served next, or None when none has credit.

        One that may end its process soon, or has ended it, comes last: what it gets would wait for
        another owner. An idle one gets what there is at once; of several the one with most.
        """
        free = [
            self._replicas[replica]
            for replica in self._speaking.get(pool, ())
            if self._free(self._replicas[replica], now_s)
        ]
        return max(free, key=lambda one: (one.is_calm(now_s), one.idle, one.free), default=None)

    def spend(self, replica_id: str, item_count: int, *, now_s: float) -> None:
        """Items leave for the replica; never more than `available`."""
        known = self._replicas[replica_id]
        assert 0 < item_count <= self._free(known, now_s)
        self._replicas[replica_id] = replace(known, sent=known.sent + item_count)

    def forget_silent(self, *, now_s: float) -> None:
        """Drop replicas of which nothing was heard for a day; no batch looks at any that is silent.

        Each start of a replica is a new one, and `best` asks for every batch.
        """
        for replicas in self._speaking.values():
            replicas -= {r for r in replicas if self._is_silent(self._replicas[r], now_s)}
        for replica_id, known in list(self._replicas.items()):
            if now_s - known.heard_s > FORGET_AFTER_S:
                del self._replicas[replica_id]
                self._speaking[known.capacity.pool].discard(replica_id)

    def speaking(self, pool: str) -> frozenset[str]:
        """Return the replicas of `pool` that `best` looks at."""
        return frozenset(self._speaking.get(pool, ()))

    def _free(self, known: ReplicaCredit, now_s: float) -> int:
        if self._is_silent(known, now_s) or not known.capacity.partitions:
            return 0
        return known.free

    def _is_silent(self, known: ReplicaCredit, now_s: float) -> bool:
        return now_s - known.heard_s > self._silence_s_max
