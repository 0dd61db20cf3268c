"""The levels between a pool and its chunks: lane, tenant, job.

    pool ─► lane (model, version, endpoint) ─► tenant ─► job ─► chunks, lowest item index first

Tenants share by what they were served. Of a tenant's jobs the lowest rank goes first, and equals
share too: see `core.urgency`.
The online calls of a tenant wait as one job would, the nearest deadline first.
"""

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from batcher.policy.fairness import VirtualCounters
from batcher.policy.indexed_priority_queue import IndexedPriorityQueue
from batcher.queueing.buffered_chunk import BatchKey, BufferedChunk
from topics.records.records import JobRef

_CALLS = UUID(int=0)


def job_key(job: JobRef) -> UUID:
    """Return the job that a chunk waits under: all online calls of a tenant are one.

    Fairness among a thousand jobs of one item each would cost a look at all of them a call.
    """
    return job.job_id if job.call is None else _CALLS


class JobQueue:
    """The chunks of one job in one lane."""

    __slots__ = ("_chunks", "job", "rank")

    def __init__(self, job: JobRef) -> None:
        """`job` is of its newest chunk."""
        self.job = job
        self.rank = 0  # among the jobs of its tenant; the lowest goes first
        self._chunks: IndexedPriorityQueue[BufferedChunk, float] = IndexedPriorityQueue()

    def __len__(self) -> int:
        return len(self._chunks)

    def add(self, held: BufferedChunk) -> None:
        """Hold a chunk."""
        self.job = job = held.job
        self._chunks.put(held, held.items[0].index if job.call is None else job.deadline_s)

    def remove(self, held: BufferedChunk) -> None:
        """A chunk leaves."""
        self._chunks.remove(held)

    def first(self) -> BufferedChunk:
        """Return the chunk of the lowest item index or nearest deadline; it stays where it is."""
        return self._chunks.first()


class TenantQueue:
    """The jobs of one tenant in one lane."""

    __slots__ = ("_counters", "_jobs", "_order")

    def __init__(self) -> None:
        self._counters: VirtualCounters[UUID] = VirtualCounters()
        self._jobs: dict[UUID, JobQueue] = {}
        self._order: IndexedPriorityQueue[UUID, tuple[int, float]] = IndexedPriorityQueue()

    def __len__(self) -> int:
        """Jobs with chunks."""
        return len(self._jobs)

    def add(self, held: BufferedChunk, rank: int) -> None:
        """Hold a chunk; `rank` is its job's among those of the tenant, the lowest goes first."""
        job_id = job_key(held.job)
        queue = self._jobs.get(job_id)
        if queue is None:
            queue = self._jobs[job_id] = JobQueue(held.job)
            self._counters.activate(job_id)
        queue.add(held)
        queue.rank = rank
        self._put(job_id, queue)

    def remove(self, held: BufferedChunk) -> None:
        """A chunk leaves."""
        job_id = job_key(held.job)
        queue = self._jobs[job_id]
        queue.remove(held)
        if not queue:
            del self._jobs[job_id]
            self._counters.deactivate(job_id)
            self._order.remove(job_id)

    @property
    def deadline_s(self) -> float:
        """The earliest deadline of what waits next of each job."""
        return min(queue.first().job.deadline_s for queue in self._jobs.values())

    def charge(self, job: JobRef, token_count: int) -> None:
        """A job was served."""
        job_id = job_key(job)
        self._counters.charge(job_id, token_count)
        self._put(job_id, self._jobs[job_id])

    def rank_again(self, rank: Callable[[JobRef], int]) -> None:
        """Ask for the rank of every job."""
        for job_id, queue in self._jobs.items():
            queue.rank = rank(queue.job)
            self._put(job_id, queue)

    def first(self) -> BufferedChunk:
        """Return the next chunk of the job of the lowest rank, of several the least served one."""
        return self._jobs[self._order.first()].first()

    def _put(self, job_id: UUID, queue: JobQueue) -> None:
        self._order.put(job_id, (queue.rank, self._counters.counter(job_id)))


class BatchKeyQueue:
    """Items that may share a batch."""

    def __init__(self, key: BatchKey) -> None:
        self.key = key
        self.tenants: dict[UUID, TenantQueue] = {}
        self.item_count = 0
        self.token_count = 0
        self.since_s = 0.0
        self.deadline_s = float("inf")  # the earliest, or that of what left since `rank_again`


@dataclass(slots=True)
class PoolQueue:
    """The lanes of a pool and the tokens that each tenant was served by it."""

    lanes: dict[BatchKey, BatchKeyQueue]
    counters: VirtualCounters[UUID]
    item_count: int = 0
    came_s: float = float("-inf")  # monotonic: when something was last added

    def next_tenant(self, lane: BatchKeyQueue) -> UUID:
        """Return the tenant of `lane` that the pool served least."""
        return self.counters.lowest(lane.tenants)

    def fair_lanes(self) -> list[BatchKeyQueue]:
        """Return the lanes with items, that of the least served tenant first."""
        full = [lane for lane in self.lanes.values() if lane.item_count]
        if len(full) > 1:
            full.sort(key=lambda lane: self.counters.counter(self.next_tenant(lane)))
        return full
