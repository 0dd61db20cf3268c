"""All buffered chunks: by pool, batch key, tenant and job, each with its acknowledgement ticket.

Bounded by items and bytes, which pools and tenants share by quotas. A record above the quota of its
tenant is deferred; the caller stops reading records while `is_reading_stopped`.
"""

from collections.abc import Callable, Container, Iterator
from uuid import UUID

from batcher.policy.batch_closing import fitting_prefix
from batcher.policy.buffer_quotas import BufferUsage, TenantPool
from batcher.policy.tenant_order import TenantOrder
from batcher.queueing.buffered_chunk import BufferedChunk, batch_key_of
from batcher.queueing.deferred_records import DeferredRecord, DeferredRecords
from batcher.queueing.group_choice import GroupChoice
from batcher.queueing.queue_discipline import NextTenant
from batcher.queueing.queue_levels import BatchKeyQueue, JobQueue, PoolQueue, TenantQueue
from core.limits import RECORD_BYTES_MAX
from topics.records.records import JobRef

BATCH_BYTES_MAX = RECORD_BYTES_MAX - 100_000
"""Bytes of one batch, measured as `BufferedChunk.byte_count`; a chunk is always smaller."""


class Queues:
    """Every chunk of this batcher that is not dispatched."""

    def __init__(
        self,
        *,
        items_max: int,
        bytes_max: int,
        deferred_max: int = 0,
        rank: Callable[[JobRef], int] = lambda _: 0,
        output_weight: Callable[[str, str], float] = lambda _pool, _endpoint: 1.0,
        next_tenant: NextTenant = PoolQueue.next_tenant,
    ) -> None:
        """`rank` orders the jobs of a tenant, the lowest first; `next_tenant` is the fair one.

        `output_weight` returns what an output token of a pool and endpoint costs in prompt tokens.
        With a `deferred_max` of 0 no record is deferred: every chunk is buffered until all is full.
        """
        self._items, self._bytes = BufferUsage(items_max), BufferUsage(bytes_max)
        self._rank, self._output_weight, self._next_tenant = rank, output_weight, next_tenant
        self.pools: dict[str, PoolQueue] = {}
        self.item_count = 0
        self.byte_count = 0
        self.reserved_count = 0
        self.deferred = DeferredRecords(deferred_max)
        self._chunks: set[BufferedChunk] = set()

    @property
    def is_full(self) -> bool:
        """Whether no more chunks should be buffered; one chunk may exceed the bound."""
        return self._items.is_full or self._bytes.is_full

    @property
    def is_reading_stopped(self) -> bool:
        """Whether no more records should be read."""
        return self.deferred.is_full if self.deferred.is_enabled else self.is_full

    def admits(self, key: TenantPool) -> bool:
        """Whether a chunk that arrives for this tenant and pool is buffered, and not deferred.

        The chunks of a tenant keep their order: behind a deferred one all are deferred.
        """
        if not self.deferred.is_enabled:
            return True
        return key not in self.deferred and self._has_quota(key)

    def take_deferred(self, count_max: int) -> list[DeferredRecord]:
        """Remove and return deferred records to read now. Their space is reserved."""
        return self.deferred.take_readable(
            count_max, buffered=self._items.by_tenant_pool.__getitem__, reserve=self._try_reserve
        )

    def reserve(self, record: BufferedChunk | DeferredRecord) -> None:
        """Count items that are added or dropped later, after a check or after they were read."""
        self.pool(record.job.pool).remember_claim(record.job)
        self.reserved_count += record.item_count
        self._use(record.job, record.item_count, record.byte_count)

    def release(self, record: BufferedChunk | DeferredRecord) -> None:
        """Undo `reserve`."""
        self.reserved_count -= record.item_count
        self._use(record.job, -record.item_count, -record.byte_count)

    def waiting(self) -> dict[str, int]:
        """Return the waiting items by pool."""
        return {name: pool.item_count for name, pool in self.pools.items()}

    def waiting_by_tenant(self) -> dict[str, dict[UUID, int]]:
        """Return the waiting items of each pool by tenant."""
        found: dict[str, dict[UUID, int]] = {name: {} for name in self.pools}
        for (tenant_id, pool), items in self._items.by_tenant_pool.items():
            found.setdefault(pool, {})[tenant_id] = items
        return found

    def pool(self, name: str) -> PoolQueue:
        """Return a pool, a new one if it is unknown."""
        known = self.pools.get(name)
        if known is None:
            known = self.pools[name] = PoolQueue({}, TenantOrder())
        return known

    def last_added_s(self, pool: str) -> float:
        """Return the monotonic time at which a chunk of `pool` was last added."""
        known = self.pools.get(pool)
        return float("-inf") if known is None else known.last_added_s

    def add(self, chunk: BufferedChunk, *, now_s: float) -> None:
        """Add a chunk, one of several prefix groups as a chunk of each."""
        if chunk.prefix_group or chunk.items[-1].prefix_group:
            for part in chunk.split_by_group():
                self._add(part, now_s)
        else:
            self._add(chunk, now_s)

    def _add(self, chunk: BufferedChunk, now_s: float) -> None:
        job = chunk.job
        key = batch_key_of(job)
        pool = self.pool(key.pool)
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
        pool.activate(job)
        self._count(pool, queue, chunk, +1)
        self._chunks.add(chunk)
        pool.grouped_count += chunk.prefix_group != 0

    def pop_batch(
        self,
        queue: BatchKeyQueue,
        *,
        item_count_max: int,
        token_count_max: int,
        turn_items_max: int | None = None,
        choice: GroupChoice | None = None,
    ) -> list[BufferedChunk]:
        """Remove a batch from a queue that is not empty, the least served tenant and job first.

        The batch has at least one item. A chunk is split if it is the first and does not fit, or
        if it has more than `turn_items_max` items and another tenant waits. `choice` chooses the
        chunks of jobs with prefix groups.
        """
        batch: list[BufferedChunk] = []
        items_left, tokens_left, bytes_left = item_count_max, token_count_max, BATCH_BYTES_MAX
        while queue.item_count and items_left:
            job = self.next_job(queue)
            if choice is None:
                chunk = job.first()
            else:
                is_half_full = 2 * items_left <= item_count_max
                chosen = choice.next_chunk(job, is_half_full=is_half_full)
                if chosen is None:
                    break
                chunk = chosen
            count = len(chunk.items)
            if turn_items_max is not None and count > turn_items_max and len(queue.tenants) > 1:
                count = min(turn_items_max, items_left)
            if not batch:
                count = _fitting_count(chunk, min(count, items_left), tokens_left)
            elif (
                count > items_left
                or _tokens_of_first(chunk, count) > tokens_left
                or chunk.byte_count > bytes_left
            ):
                break
            front = self._pop_front(queue, chunk, count)
            items_left -= count
            tokens_left -= front.token_count
            bytes_left -= front.byte_count
            batch.append(front)
        return batch

    def remove(self, chunk: BufferedChunk) -> None:
        """Remove a chunk that is dispatched, requeued, dropped or revoked; idempotent."""
        if chunk.is_removed:
            return
        chunk.is_removed = True
        self._chunks.discard(chunk)
        job, key = chunk.job, batch_key_of(chunk.job)
        pool = self.pools[key.pool]
        pool.grouped_count -= chunk.prefix_group != 0
        queue = pool.batch_keys[key]
        self._count(pool, queue, chunk, -1)
        tenant = queue.tenants[job.tenant_id]
        tenant.remove(chunk)
        if tenant:
            return
        del queue.tenants[job.tenant_id]
        if not any(job.tenant_id in other.tenants for other in pool.batch_keys.values()):
            pool.deactivate(job.tenant_id)
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
            name
            for name, pool in self.pools.items()
            if not pool.item_count and name not in known and not pool.counters.expects_clients
        ]
        for name in forgotten:
            del self.pools[name]
        return forgotten

    def snapshot(self) -> Iterator[BufferedChunk]:
        """Return every chunk in no order, from a copy: chunks may be removed meanwhile."""
        return iter(list(self._chunks))

    def _pop_front(self, queue: BatchKeyQueue, chunk: BufferedChunk, count: int) -> BufferedChunk:
        """Remove the first `count` items of the next chunk, or all of it."""
        is_whole = count == len(chunk.items)
        front = chunk if is_whole else self._split(queue, chunk, count)
        self._charge(queue, front)
        if is_whole:
            self.remove(chunk)
        return front

    def next_job(self, queue: BatchKeyQueue) -> JobQueue:
        """Return the next job of a queue that is not empty, of the least served tenant."""
        return queue.tenants[self._next_tenant(self.pools[queue.key.pool], queue)].first()

    def _split(self, queue: BatchKeyQueue, chunk: BufferedChunk, count: int) -> BufferedChunk:
        """Split the front off a chunk, which stays first of its job."""
        pool = self.pools[queue.key.pool]
        self._count(pool, queue, chunk, -1)
        front = chunk.split(count)
        self._count(pool, queue, chunk, +1)
        return front

    def _charge(self, queue: BatchKeyQueue, front: BufferedChunk) -> None:
        job, key = front.job, queue.key
        front.charged = front.cost(self._output_weight(key.pool, key.endpoint))
        self.pools[key.pool].charge(job, front.charged)
        queue.tenants[job.tenant_id].charge(job, front.charged)

    def _count(
        self, pool: PoolQueue, queue: BatchKeyQueue, chunk: BufferedChunk, sign: int
    ) -> None:
        items = sign * len(chunk.items)
        queue.item_count += items
        queue.token_count += sign * chunk.token_count
        queue.output_token_count += sign * chunk.output_token_count
        pool.item_count += items
        self.item_count += items
        self.byte_count += sign * chunk.byte_count
        self._use(chunk.job, items, sign * chunk.byte_count)

    def _has_quota(self, key: TenantPool) -> bool:
        return self._items.admits(key) and self._bytes.admits(key)

    def _try_reserve(self, record: DeferredRecord) -> bool:
        if not record.is_urgent and not self._has_quota(record.key):
            return False
        self.reserve(record)
        return True

    def _use(self, job: JobRef, items: int, byte_count: int) -> None:
        key = job.tenant_id, job.pool
        self._items.add(key, items)
        self._bytes.add(key, byte_count)


def _fitting_count(chunk: BufferedChunk, item_count_max: int, token_count_max: int) -> int:
    """Return how many of the first items of a chunk fit: one at least."""
    if len(chunk.items) <= item_count_max and chunk.token_count <= token_count_max:
        return len(chunk.items)
    return fitting_prefix(
        [item.token_count for item in chunk.items],
        item_count_max=item_count_max,
        token_count_max=token_count_max,
    )


def _tokens_of_first(chunk: BufferedChunk, count: int) -> int:
    if count == len(chunk.items):
        return chunk.token_count
    return sum(item.token_count for item in chunk.items[:count])
