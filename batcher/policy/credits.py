"""Credit-based flow control: how many items may be sent to which replica (RFC 9113, 5.2).

A replica grants this batcher a cumulative number of items per epoch, on `grants`; a replica of an
earlier release does so on `capacity`. A grant is void on a new epoch, when the replica reports
itself unavailable, and after a silence; items sent still count. Work goes to replicas that have its
model (ADR 107).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from batcher.policy.hash_ring import HashRing
from batcher.policy.pool_replicas import PoolReplicas
from batcher.policy.replica_index import Rank, ReplicaIndex
from topics.records.eligibility import RequiredModel, RunnableModels, is_starting, runnable_models
from topics.records.records import Capacity, ReplicaGrants

STALE_S = 1.5
"""Age from which a replica's last record is late: it publishes every second or more often."""

SUFFICIENT_CREDIT_DIVISOR = 4
"""Credit is sufficient from a quarter of the replica's concurrency."""

WINDOW_DECAY = 8
"""Part (1/8) of a window that was not free which is forgotten at each run of maintenance."""

FORGET_AFTER_S = 24 * 3600.0
"""Silence after which a replica and its count are forgotten; its topic retains no longer past."""

_NO_VERSION = RequiredModel("")


@dataclass(slots=True, kw_only=True, eq=False)
class ReplicaCredit:
    """The credit of one replica epoch. The ledger changes it."""

    capacity: Capacity  # its `granted` is not used
    granted: int  # cumulative items for this batcher
    sent: int  # items of the grant that were sent
    read_s: float  # monotonic: when its last grant was read
    free_since_s: float  # when its credit last grew from nothing
    models: RunnableModels = field(default_factory=RunnableModels)
    has_grants: bool = False  # its grants come from `grants`
    window: int = 0  # the largest credit of late: that of the replica without items of this batcher

    @property
    def free(self) -> int:
        """Items that the grant still allows, at least 0, however old the record is."""
        return max(0, self.granted - self.sent) if self.capacity.available else 0

    @property
    def load(self) -> int:
        """An estimate of the items of this batcher that are at the replica."""
        return max(0, self.window - (self.granted - self.sent))

    @property
    def idle(self) -> bool:
        """Whether the replica has credit for its whole concurrency."""
        return self.free >= max(1, self.capacity.concurrency)

    def rank(self, now_s: float) -> Rank:
        """Return the order of the replica among those with credit; lower ranks get batches first.

        First come replicas that run no suspect items, are not late, and have sufficient credit:
        little credit must not attract a batch, whose items would wait although another replica has
        more. Then idle ones, then those with most credit.
        """
        free, concurrency = self.free, self.capacity.concurrency
        is_safe = not self.capacity.in_danger and now_s - self.read_s <= STALE_S
        is_preferred = is_safe and free * SUFFICIENT_CREDIT_DIVISOR >= concurrency
        return not is_preferred, free < max(1, concurrency), -free


class BestReplicas:
    """The replicas of a pool that get the next batch at one instant, by required model."""

    __slots__ = ("_by_index", "_now_s", "_replicas")

    def __init__(
        self, replicas: PoolReplicas, by_index: Mapping[ReplicaIndex, ReplicaCredit], now_s: float
    ) -> None:
        """`by_index` has the best replica of each index that has one with credit."""
        self._replicas, self._by_index, self._now_s = replicas, by_index, now_s

    def of(self, required: RequiredModel) -> ReplicaCredit | None:
        """Return the best replica for work that needs a model; None if none has credit."""
        best: ReplicaCredit | None = None
        for index in self._replicas.eligible(required):
            found = self._by_index.get(index)
            if found is None or best is None:
                best = best or found
            elif found.rank(self._now_s) < best.rank(self._now_s):
                best = found
        return best


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
        self._by_pool: dict[str, PoolReplicas] = {}  # replicas that may have credit
        self._pool_sizes: dict[str, int] = {}  # silent replicas included

    @property
    def pools(self) -> frozenset[str]:
        """Every pool with a known replica."""
        return frozenset(self._pool_sizes)

    def record_capacity(self, capacity: Capacity, *, now_s: float) -> None:
        """Apply a replica's public state; older epochs and the other job class are ignored.

        Its grants count until the same epoch is read from `grants`, and again while that is silent.
        A replica that loads its model, or has refused it, is ignored.
        """
        if capacity.job_class != self._job_class or is_starting(capacity):
            return
        known = self._replicas.get(capacity.replica_id)
        has_grants = (
            known is not None
            and known.has_grants
            and known.capacity.epoch == capacity.epoch
            and not self._is_silent(known, now_s)
        )
        if known is not None and has_grants:
            if known.capacity.items_per_s != capacity.items_per_s:
                known.capacity = replace(known.capacity, items_per_s=capacity.items_per_s)
        else:
            self._apply(
                capacity,
                capacity.granted,
                runnable_models(capacity.models),
                now_s=now_s,
                has_grants=False,
            )

    def record_grants(self, grants: ReplicaGrants, *, now_s: float) -> None:
        """Apply a replica's grants; older epochs and the other job class are ignored."""
        if grants.job_class != self._job_class:
            return
        known = self._replicas.get(grants.replica_id)
        if (
            known is not None
            and known.has_grants
            and _is_same_state(known.capacity, grants)
            and len(known.models.versions) == len(grants.versions)
            and known.models.versions.issuperset(grants.versions)
            and known.models.takes_adapters is (grants.adapters_max > 0)
        ):
            self._update_granted(known, grants.granted.get(self._batcher_id, 0), now_s)
            return
        capacity = _with_grants(None if known is None else known.capacity, grants)
        models = RunnableModels(frozenset(grants.versions), grants.adapters_max > 0)
        self._apply(capacity, grants.granted, models, now_s=now_s, has_grants=True)

    def _update_granted(self, known: ReplicaCredit, granted: int, now_s: float) -> None:
        """Apply grants of a replica whose state is known: 5,000 a second with 1,000 replicas."""
        silence_s = now_s - known.read_s
        known.read_s = now_s
        if granted == known.granted and silence_s <= min(STALE_S, self._silence_s_max):
            return  # its rank is the same
        if known.granted <= known.sent or silence_s > self._silence_s_max:
            known.free_since_s = now_s
        known.granted = granted
        self._mark_changed(known)

    def _apply(
        self,
        capacity: Capacity,
        granted: Mapping[str, int],
        models: RunnableModels,
        *,
        now_s: float,
        has_grants: bool,
    ) -> None:
        replica_id, pool = capacity.replica_id, capacity.pool
        known = self._replicas.get(replica_id)
        if known is None:
            known = self._replicas[replica_id] = ReplicaCredit(
                capacity=capacity, granted=0, sent=0, read_s=now_s, free_since_s=now_s
            )
            self._pool_sizes[pool] = self._pool_sizes.get(pool, 0) + 1
        before = known.capacity
        if capacity.epoch < before.epoch:
            return
        is_same_epoch = capacity.epoch == before.epoch
        if not (is_same_epoch and self._free(known, now_s)):
            known.free_since_s = now_s
        if not is_same_epoch:
            known.sent = known.window = 0
        if pool != before.pool:
            self._leave_pool(replica_id, before.pool)
            self._pool_sizes[pool] = self._pool_sizes.get(pool, 0) + 1
        known.capacity, known.granted = capacity, granted.get(self._batcher_id, 0)
        known.read_s, known.has_grants, known.models = now_s, has_grants, models
        if pool not in self._by_pool:
            self._by_pool[pool] = PoolReplicas(self._rank)
        self._mark_changed(known)

    def available(self, replica_id: str, *, now_s: float) -> int:
        """Return the items that may be sent to the replica now."""
        known = self._replicas.get(replica_id)
        return 0 if known is None else self._free(known, now_s)

    def best_replicas(self, pool: str, *, now_s: float) -> BestReplicas | None:
        """Return the replicas that get the next batch of `pool`, or None if none has credit.

        See `ReplicaCredit.rank`. The items of a replica that ends its process would have to wait
        for another owner.
        """
        replicas = self._by_pool.get(pool)
        if replicas is None:
            return None
        by_index: dict[ReplicaIndex, ReplicaCredit] = {}
        for index in replicas.indexes:
            found = index.best(self._is_usable, now_s=now_s)
            if found is not None:
                by_index[index] = self._replicas[found]
        return BestReplicas(replicas, by_index, now_s) if by_index else None

    def best(
        self, pool: str, *, now_s: float, required: RequiredModel = _NO_VERSION
    ) -> ReplicaCredit | None:
        """Return the replica of `pool` that gets the next batch of a model; None without credit.

        Without a version, only a replica that lists none is found.
        """
        found = self.best_replicas(pool, now_s=now_s)
        return None if found is None else found.of(required)

    def is_served(self, pool: str, required: RequiredModel) -> bool:
        """Return whether a replica of `pool` that is not silent may run work of a model."""
        replicas = self._by_pool.get(pool)
        return replicas is not None and bool(replicas.eligible(required))

    def ring(self, pool: str, required: RequiredModel = _NO_VERSION) -> HashRing:
        """Return the ring of the replicas that `best` considers, with their loads."""
        ring, missing = self._by_pool[pool].ring(required)
        for replica_id in missing:
            known = self._replicas[replica_id]
            ring.set_load(replica_id, known.load, max(1, known.capacity.concurrency))
        return ring

    def replica(self, replica_id: str) -> ReplicaCredit:
        """Return a known replica."""
        return self._replicas[replica_id]

    def is_as_free(self, replica_id: str, best: Rank, *, now_s: float) -> bool:
        """Return whether a replica can be used like one of the rank: as safe, and idle if it is."""
        known = self._replicas[replica_id]
        if known.granted <= known.sent:
            return False
        rank = self._rank(replica_id, now_s)
        return rank is not None and rank[:2] <= best[:2] and self._is_reachable(known.capacity)

    def spend(self, replica_id: str, item_count: int, *, now_s: float) -> None:
        """Deduct items that are sent to the replica; never more than `available`."""
        known = self._replicas[replica_id]
        assert 0 < item_count <= self._free(known, now_s)
        self._add_sent(known, item_count)

    def refund(self, sent_to: Capacity, item_count: int) -> None:
        """Return the credit of items that did not reach the replica; a negative count spends it.

        Items of an earlier epoch have no credit any more.
        """
        known = self._replicas.get(sent_to.replica_id)
        if known is not None and known.capacity.epoch == sent_to.epoch:
            self._add_sent(known, -item_count)

    def forget_silent_replicas(self, *, now_s: float) -> None:
        """Exclude silent replicas from `best`, and forget those that were silent for a day.

        Each restart of a replica is a new replica.
        """
        for replica_id, known in list(self._replicas.items()):
            not_free = known.window - max(0, known.granted - known.sent)
            known.window -= -(-not_free // WINDOW_DECAY)  # rounded up, so that it ends at 0
            if self._is_silent(known, now_s):
                self._discard(replica_id, known.capacity.pool)
            elif not_free:
                self._update_load(known)
            if now_s - known.read_s > FORGET_AFTER_S:
                del self._replicas[replica_id]
                self._leave_pool(replica_id, known.capacity.pool)

    def candidates(self, pool: str) -> frozenset[str]:
        """Return the replicas of `pool` that `best` considers."""
        replicas = self._by_pool.get(pool)
        return frozenset() if replicas is None else replicas.replica_ids

    def _add_sent(self, known: ReplicaCredit, item_count: int) -> None:
        known.sent += item_count
        self._mark_changed(known)

    def _mark_changed(self, known: ReplicaCredit) -> None:
        capacity = known.capacity
        self._by_pool[capacity.pool].mark_changed(capacity.replica_id, known.models)
        self._update_load(known)

    def _update_load(self, known: ReplicaCredit) -> None:
        known.window = max(known.window, known.granted - known.sent)
        capacity = known.capacity
        replicas = self._by_pool[capacity.pool]
        if replicas.has_rings:
            weight = max(1, capacity.concurrency)
            replicas.set_load(capacity.replica_id, known.load, weight)

    def _leave_pool(self, replica_id: str, pool: str) -> None:
        self._discard(replica_id, pool)
        self._pool_sizes[pool] -= 1
        if not self._pool_sizes[pool]:
            del self._pool_sizes[pool], self._by_pool[pool]

    def _discard(self, replica_id: str, pool: str) -> None:
        self._by_pool[pool].discard(replica_id)

    def _is_usable(self, replica_id: str) -> bool:
        return self._is_reachable(self._replicas[replica_id].capacity)

    def _rank(self, replica_id: str, now_s: float) -> Rank | None:
        known = self._replicas[replica_id]
        return known.rank(now_s) if self._free(known, now_s) else None

    def _free(self, known: ReplicaCredit, now_s: float) -> int:
        if self._is_silent(known, now_s) or not known.capacity.partitions:
            return 0
        return known.free

    def _is_silent(self, known: ReplicaCredit, now_s: float) -> bool:
        return now_s - known.read_s > self._silence_s_max


def _with_grants(known: Capacity | None, grants: ReplicaGrants) -> Capacity:
    """Return the public state of a replica with what its grants say; its rate may be unknown."""
    if known is None:
        return Capacity(
            replica_id=grants.replica_id,
            epoch=grants.epoch,
            pool=grants.pool,
            job_class=grants.job_class,
            partitions=grants.partitions,
            granted={},
            items_per_s=0.0,
            concurrency=grants.concurrency,
            available=grants.available,
            in_danger=grants.in_danger,
        )
    if _is_same_state(known, grants):
        return known
    return replace(
        known,
        epoch=grants.epoch,
        pool=grants.pool,
        partitions=grants.partitions,
        concurrency=grants.concurrency,
        available=grants.available,
        in_danger=grants.in_danger,
    )


def _is_same_state(known: Capacity, grants: ReplicaGrants) -> bool:
    return (
        known.epoch == grants.epoch
        and known.in_danger == grants.in_danger
        and known.available == grants.available
        and known.concurrency == grants.concurrency
        and known.partitions == grants.partitions
        and known.pool == grants.pool
    )
