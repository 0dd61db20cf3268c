"""All buffered chunks: by pool, batch key, tenant and job, each with its acknowledgement ticket.

Bounded by items and bytes; the caller stops accepting records while `is_full`.
"""

from collections.abc import Callable, Container, Iterator

from batcher.policy.batch_closing import fitting_prefix
from batcher.policy.fairness import VirtualCounters
from batcher.queueing.buffered_chunk import BufferedChunk, batch_key_of
from batcher.queueing.queue_levels import BatchKeyQueue, PoolQueue, TenantQueue
from core.limits import RECORD_BYTES_MAX
from topics.records.records import JobRef

BATCH_BYTES_MAX = RECORD_BYTES_MAX - 100_000
"""Bytes of one batch, measured as `BufferedChunk.byte_count`; a chunk is always smaller."""


class Queues:
    """Every chunk of this batcher that is not dispatched."""

    def __init__(
        self, *, items_max: int, bytes_max: int, rank: Callable[[JobRef], int] = lambda _: 0
    ) -> None:
        """`rank` orders the jobs of a tenant, the lowest first."""
        self._items_max, self._bytes_max = items_max, bytes_max
        self._rank = rank
        self.pools: dict[str, PoolQueue] = {}
        self.item_count = 0
        self.byte_count = 0
        self.reserved_count = 0
        self._reserved_bytes = 0
        self._chunks: set[BufferedChunk] = set()

    @property
    def is_full(self) -> bool:
        """Whether no more records should be accepted; one chunk may exceed the bound."""
        return (
            self.item_count + self.reserved_count >= self._items_max
            or self.byte_count + self._reserved_bytes >= self._bytes_max
        )

    def reserve(self, chunk: BufferedChunk) -> None:
        """Count a chunk that is added or dropped later, after its check."""
        self.reserved_count += len(chunk.items)
        self._reserved_bytes += chunk.byte_count

    def release(self, chunk: BufferedChunk) -> None:
        """Undo `reserve`."""
        self.reserved_count -= len(chunk.items)
        self._reserved_bytes -= chunk.byte_count

    def waiting(self) -> dict[str, int]:
        """Return the waiting items by pool."""
        return {name: pool.item_count for name, pool in self.pools.items()}

    def last_added_s(self, pool: str) -> float:
        """Return the monotonic time at which a chunk of `pool` was last added."""
        known = self.pools.get(pool)
        return float("-inf") if known is None else known.last_added_s

    def add(self, chunk: BufferedChunk, *, now_s: float) -> None:
        """Add a chunk."""
        job = chunk.job
        key = batch_key_of(job)
        pool = self.pools.get(key.pool) or self._new_pool(key.pool)
        pool.last_added_s = now_s
        queue = pool.batch_keys.get(key)
        if queue is None:
            queue = pool.batch_keys[key] = BatchKeyQueue(key)
        if queue.item_count == 0:
            queue.since_s, queue.deadline_s = now_s, job.deadline_s
        queue.deadline_s = min(queue.deadline_s, job.deadline_s)
        tenant = queue.tenants.get(job.tenant_id)
        if tenant is None:
            tenant = queue.tenants[job.tenant_id] = TenantQueue()
        tenant.add(chunk, self._rank(job))
        pool.counters.activate(job.tenant_id)
        self._count(pool, queue, chunk, +1)
        self._chunks.add(chunk)

    def pop_batch(
        self, queue: BatchKeyQueue, *, item_count_max: int, token_count_max: int
    ) -> list[BufferedChunk]:
        """Remove a batch from a queue that is not empty, the least served tenant and job first.

        The batch has at least one item. Only its first chunk may be split.
        """
        batch = [self._pop_first(queue, item_count_max, token_count_max)]
        items_left = item_count_max - len(batch[0].items)
        tokens_left = token_count_max - batch[0].token_count
        bytes_left = BATCH_BYTES_MAX - batch[0].byte_count
        while queue.item_count:
            chunk = self._next(queue)
            items_left -= len(chunk.items)
            tokens_left -= chunk.token_count
            bytes_left -= chunk.byte_count
            if min(items_left, tokens_left, bytes_left) < 0:
                break
            self._charge(queue, chunk)
            self.remove(chunk)
            batch.append(chunk)
        return batch

    def remove(self, chunk: BufferedChunk) -> None:
        """Remove a chunk that is dispatched, requeued, dropped or revoked; idempotent."""
        if chunk.is_removed:
            return
        chunk.is_removed = True
        self._chunks.discard(chunk)
        job, key = chunk.job, batch_key_of(chunk.job)
        pool = self.pools[key.pool]
        queue = pool.batch_keys[key]
        self._count(pool, queue, chunk, -1)
        tenant = queue.tenants[job.tenant_id]
        tenant.remove(chunk)
        if tenant:
            return
        del queue.tenants[job.tenant_id]
        if not any(job.tenant_id in other.tenants for other in pool.batch_keys.values()):
            pool.counters.deactivate(job.tenant_id)
        if not queue.tenants:
            del pool.batch_keys[key]

    def update_ranks(self) -> None:
        """Compute every job's rank and every queue's earliest deadline again.

        Ranks change as deadlines approach and priorities are set; the job with the earliest
        deadline may have left.
        """
        for pool in self.pools.values():
            for queue in pool.batch_keys.values():
                for tenant in queue.tenants.values():
                    tenant.update_ranks(self._rank)
                queue.deadline_s = min(tenant.deadline_s for tenant in queue.tenants.values())

    def forget_empty_pools(self, known: Container[str]) -> list[str]:
        """Forget the empty pools that are not in `known`, and return their names."""
        forgotten = [
            name for name, pool in self.pools.items() if not pool.item_count and name not in known
        ]
        for name in forgotten:
            del self.pools[name]
        return forgotten

    def snapshot(self) -> Iterator[BufferedChunk]:
        """Return every chunk in no order, from a copy: chunks may be removed meanwhile."""
        return iter(list(self._chunks))

    def _pop_first(
        self, queue: BatchKeyQueue, item_count_max: int, token_count_max: int
    ) -> BufferedChunk:
        """Remove the next chunk, or the front of it that fits."""
        chunk = self._next(queue)
        fitting = len(chunk.items)
        if fitting > item_count_max or chunk.token_count > token_count_max:
            fitting = fitting_prefix(
                [item.token_count for item in chunk.items],
                item_count_max=item_count_max,
                token_count_max=token_count_max,
            )
        fits = fitting == len(chunk.items)
        front = chunk if fits else self._split(queue, chunk, fitting)
        self._charge(queue, front)
        if fits:
            self.remove(chunk)
        return front

    def _next(self, queue: BatchKeyQueue) -> BufferedChunk:
        return queue.tenants[self.pools[queue.key.pool].next_tenant(queue)].first()

    def _split(self, queue: BatchKeyQueue, chunk: BufferedChunk, count: int) -> BufferedChunk:
        """Split the front off a chunk, which stays first of its job."""
        pool = self.pools[queue.key.pool]
        self._count(pool, queue, chunk, -1)
        front = chunk.split(count)
        self._count(pool, queue, chunk, +1)
        return front

    def _charge(self, queue: BatchKeyQueue, front: BufferedChunk) -> None:
        job = front.job
        pool = self.pools[queue.key.pool]
        pool.counters.charge(job.tenant_id, front.token_count)
        queue.tenants[job.tenant_id].charge(job, front.token_count)

    def _count(
        self, pool: PoolQueue, queue: BatchKeyQueue, chunk: BufferedChunk, sign: int
    ) -> None:
        items = sign * len(chunk.items)
        queue.item_count += items
        queue.token_count += sign * chunk.token_count
        pool.item_count += items
        self.item_count += items
        self.byte_count += sign * chunk.byte_count

    def _new_pool(self, name: str) -> PoolQueue:
        pool = self.pools[name] = PoolQueue({}, VirtualCounters())
        return pool
