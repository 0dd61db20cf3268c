"""What is held: items by pool, lane, tenant and job, each chunk with its acknowledgement ticket.

Bounded by items and bytes; the owner stops taking records while `is_full`.
"""

from collections.abc import Callable, Container, Iterator
from uuid import UUID

from batcher.policy.batch_closing import fitting_prefix
from batcher.policy.fairness import VirtualCounters
from batcher.queueing.buffered_chunk import BufferedChunk, batch_key_of
from batcher.queueing.queue_levels import BatchKeyQueue, PoolQueue, TenantQueue
from core.limits import RECORD_BYTES_MAX
from topics.records.records import JobRef

BATCH_BYTES_MAX = RECORD_BYTES_MAX - 100_000
"""Bytes of one batch by the same measure as `BufferedChunk.byte_count`; a chunk is always smaller."""


class Queues:
    """Everything that this batcher holds and has not dispatched."""

    def __init__(
        self,
        *,
        items_max: int,
        bytes_max: int,
        weight: Callable[[UUID], float] = lambda _: 1.0,
        rank: Callable[[JobRef], int] = lambda _: 0,
    ) -> None:
        """`weight` is a tenant's share relative to others; `rank` a job's place in its tenant."""
        self._items_max, self._bytes_max = items_max, bytes_max
        self._weight, self._rank = weight, rank
        self.pools: dict[str, PoolQueue] = {}
        self.item_count = 0
        self.byte_count = 0
        self.unchecked_count = 0
        self._unchecked_bytes = 0
        self._held: set[BufferedChunk] = set()

    @property
    def is_full(self) -> bool:
        """Whether no more records should be taken; one chunk may exceed the bound."""
        return (
            self.item_count + self.unchecked_count >= self._items_max
            or self.byte_count + self._unchecked_bytes >= self._bytes_max
        )

    def expect(self, held: BufferedChunk) -> None:
        """A chunk takes room from now on, and is added or forgotten once it is checked."""
        self.unchecked_count += len(held.items)
        self._unchecked_bytes += held.byte_count

    def checked(self, held: BufferedChunk) -> None:
        """A chunk that was expected takes no room any more."""
        self.unchecked_count -= len(held.items)
        self._unchecked_bytes -= held.byte_count

    def waiting(self) -> dict[str, int]:
        """Return the items that wait, by pool."""
        return {name: pool.item_count for name, pool in self.pools.items()}

    def came_s(self, pool: str) -> float:
        """Return the monotonic time at which something of `pool` was last added."""
        known = self.pools.get(pool)
        return float("-inf") if known is None else known.came_s

    def add(self, held: BufferedChunk, *, now_s: float) -> None:
        """Hold a chunk."""
        job = held.job
        key = batch_key_of(job)
        pool = self.pools.get(key.pool) or self._new_pool(key.pool)
        pool.came_s = now_s
        lane = pool.lanes.get(key)
        if lane is None:
            lane = pool.lanes[key] = BatchKeyQueue(key)
        if lane.item_count == 0:
            lane.since_s, lane.deadline_s = now_s, job.deadline_s
        lane.deadline_s = min(lane.deadline_s, job.deadline_s)
        tenant = lane.tenants.get(job.tenant_id)
        if tenant is None:
            tenant = lane.tenants[job.tenant_id] = TenantQueue()
        tenant.add(held, self._rank(job))
        pool.counters.activate(job.tenant_id)
        self._count(pool, lane, held, +1)
        self._held.add(held)

    def take(
        self, lane: BatchKeyQueue, *, item_count_max: int, token_count_max: int
    ) -> list[BufferedChunk]:
        """Remove a batch from a lane that is not empty, the least served tenant and job first.

        At least one item. Chunks stay whole where they can: only the first may be cut.
        """
        taken = [self._take_first(lane, item_count_max, token_count_max)]
        items_left = item_count_max - len(taken[0].items)
        tokens_left = token_count_max - taken[0].token_count
        bytes_left = BATCH_BYTES_MAX - taken[0].byte_count
        while lane.item_count:
            held = self._next(lane)
            items_left -= len(held.items)
            tokens_left -= held.token_count
            bytes_left -= held.byte_count
            if min(items_left, tokens_left, bytes_left) < 0:
                break
            self._charge(lane, held)
            self.remove(held)
            taken.append(held)
        return taken

    def remove(self, held: BufferedChunk) -> None:
        """A chunk leaves whole: dispatched, handed back, closed or revoked."""
        if held.gone:
            return
        held.gone = True
        self._held.discard(held)
        job, key = held.job, batch_key_of(held.job)
        pool = self.pools[key.pool]
        lane = pool.lanes[key]
        self._count(pool, lane, held, -1)
        tenant = lane.tenants[job.tenant_id]
        tenant.remove(held)
        if tenant:
            return
        del lane.tenants[job.tenant_id]
        if not any(job.tenant_id in other.tenants for other in pool.lanes.values()):
            pool.counters.deactivate(job.tenant_id)
        if not lane.tenants:
            del pool.lanes[key]

    def rank_again(self) -> None:
        """Ask anew for the rank of every job: deadlines come near, owners change their minds.

        And for the earliest deadline of every lane: the job that had it may have left.
        """
        for pool in self.pools.values():
            for lane in pool.lanes.values():
                for tenant in lane.tenants.values():
                    tenant.rank_again(self._rank)
                lane.deadline_s = min(tenant.deadline_s for tenant in lane.tenants.values())

    def forget(self, known: Container[str]) -> list[str]:
        """Drop the empty pools that are not in `known`, and return their names."""
        gone = [
            name for name, pool in self.pools.items() if not pool.item_count and name not in known
        ]
        for name in gone:
            del self.pools[name]
        return gone

    def held(self) -> Iterator[BufferedChunk]:
        """Return every chunk, in no order; a snapshot, so that chunks may be removed."""
        return iter(list(self._held))

    def _take_first(
        self, lane: BatchKeyQueue, item_count_max: int, token_count_max: int
    ) -> BufferedChunk:
        """Take the next chunk, or what of it fits."""
        held = self._next(lane)
        fitting = len(held.items)
        if fitting > item_count_max or held.token_count > token_count_max:
            fitting = fitting_prefix(
                [item.token_count for item in held.items],
                item_count_max=item_count_max,
                token_count_max=token_count_max,
            )
        whole = fitting == len(held.items)
        front = held if whole else self._split(lane, held, fitting)
        self._charge(lane, front)
        if whole:
            self.remove(held)
        return front

    def _next(self, lane: BatchKeyQueue) -> BufferedChunk:
        return lane.tenants[self.pools[lane.key.pool].next_tenant(lane)].first()

    def _split(self, lane: BatchKeyQueue, held: BufferedChunk, count: int) -> BufferedChunk:
        """Cut the front off a chunk at the head of its job: it stays the head."""
        pool = self.pools[lane.key.pool]
        self._count(pool, lane, held, -1)
        front = held.split(count)
        self._count(pool, lane, held, +1)
        return front

    def _charge(self, lane: BatchKeyQueue, front: BufferedChunk) -> None:
        job = front.job
        pool = self.pools[lane.key.pool]
        pool.counters.charge(job.tenant_id, front.token_count, self._weight(job.tenant_id))
        lane.tenants[job.tenant_id].charge(job, front.token_count)

    def _count(self, pool: PoolQueue, lane: BatchKeyQueue, held: BufferedChunk, sign: int) -> None:
        items = sign * len(held.items)
        lane.item_count += items
        lane.token_count += sign * held.token_count
        pool.item_count += items
        self.item_count += items
        self.byte_count += sign * held.byte_count

    def _new_pool(self, name: str) -> PoolQueue:
        pool = self.pools[name] = PoolQueue({}, VirtualCounters())
        return pool
