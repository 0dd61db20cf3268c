"""Goal: a tenant that comes to a busy pool runs after one window of the replica's work, and equals.

The rules of intake and of the batcher in one loop, in virtual time: windows, the log, the buffer
with its quotas, batches by fairness, and a replica with a rate. Services cost no time, so what is
measured is what the rules make a tenant wait for: items of others.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

import pytest

from batcher.policy.batch_closing import turn_items
from batcher.queueing.buffered_chunk import BufferedChunk
from batcher.queueing.deferred_records import DeferredRecord
from batcher.queueing.queues import Queues
from benchmarks.statistics.fairness import jain_index
from core.limits import CHUNK_ITEMS_MAX
from jobs.expansion.allowances import allowances
from jobs.expansion.load_sums import JobLoad, LoadSums
from jobs.expansion.windows import (
    PoolCapacity,
    WindowLimits,
    pool_budgets,
    remaining_of,
    tenant_windows,
)
from tests.unit.batcher.builders import buffered, job_ref
from topics.records.records import JobRef

LIMITS = WindowLimits(
    window_s=3, window_items_max=1_000_000, read_ahead_items=20_000, read_ahead_bytes=2**26
)
RATE = 3200  # items/s: 20 ms × 64
STEP_S = 0.05
BATCH_ITEMS = 100
REPLICA_ITEMS = 384  # `bulk_limit` of this replica: what is at the replica
ROW_STEPS = 4  # a row is written 0.2 s after its item ran
FIRST_RESULT_ITEMS = RATE // 2  # the goal: 0.5 s of work


@dataclass
class Job:
    ref: JobRef
    total: int
    emitted: int = 0
    rows: int = 0
    ran: int = 0
    first_ran: int | None = None  # items that the replica had run before

    def load(self) -> JobLoad:
        ids = self.ref.job_id, self.ref.tenant_id
        return JobLoad(*ids, self.ref.pool, self.total, self.emitted, self.rows)


@dataclass
class VirtualStack:
    """One intake, one batcher and one replica of the pool `p`."""

    capacity: dict[str, PoolCapacity] = field(
        default_factory=lambda: {"p": PoolCapacity(float(RATE), 64)}
    )
    jobs: dict[UUID, Job] = field(default_factory=dict)
    loads: dict[UUID, JobLoad] = field(default_factory=dict)
    sums: LoadSums = field(default_factory=LoadSums)
    changed: set[UUID] = field(default_factory=set)  # jobs whose load differs from `loads`
    log: deque[tuple[JobRef, range]] = field(default_factory=deque)
    records: dict[int, tuple[JobRef, range]] = field(default_factory=dict)  # deferred, by offset
    queues: Queues = field(
        default_factory=lambda: Queues(items_max=40_000, bytes_max=2**27, deferred_max=8192)
    )
    at_replica: deque[BufferedChunk] = field(default_factory=deque)
    rows_due: deque[Counter[UUID]] = field(default_factory=deque)
    ran: int = 0
    steps: int = 0

    def submit(self, number: int, total: int, *, pool: str = "p") -> Job:
        job = Job(job_ref(number, pool=pool), total)
        self.jobs[job.ref.job_id] = job
        self.changed.add(job.ref.job_id)
        return job

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.steps += 1
            self._emit()
            self._read()
            self._execute(int(RATE * STEP_S))

    def run_until_first(self, job: Job) -> int:
        """Return how many items of others ran from now to the first item of `job`."""
        before = self.ran
        while job.first_ran is None:
            self.run(1)
        return job.first_ran - before

    def _emit(self) -> None:
        for job_id in self.changed:
            load = self.jobs[job_id].load()
            self.sums.replace(self.loads.get(job_id), load)
            self.loads[job_id] = load
        self.changed.clear()
        loads, by_tenant_pool = list(self.loads.values()), self.sums.by_tenant_pool
        budgets = pool_budgets(self.sums.by_pool, self.capacity, LIMITS, 1)
        windows = tenant_windows(
            by_tenant_pool, remaining_of(loads), budgets, items_max=20_000, turn=self.steps
        )
        for job_id, count in allowances(loads, by_tenant_pool, windows).items():
            self.changed.add(job_id)
            job = self.jobs[job_id]
            for first in range(job.emitted, job.emitted + count, CHUNK_ITEMS_MAX):
                end = min(first + CHUNK_ITEMS_MAX, job.emitted + count)
                self.log.append((job.ref, range(first, end)))
            job.emitted += count

    def _read(self) -> None:
        while self.log and not self.queues.is_reading_stopped:
            ref, indexes = self.log.popleft()
            chunk = buffered(ref, indexes)
            if self.queues.admits((ref.tenant_id, ref.pool)):
                self.queues.add(chunk, now_s=0.0)
                continue
            offset = len(self.records) + self.steps * 10**6
            self.records[offset] = ref, indexes
            self.queues.deferred.add(
                DeferredRecord(
                    ref, chunk.ticket, offset, len(indexes), chunk.byte_count, is_redelivery=False
                )
            )
        for record in self.queues.take_deferred(10**6):
            self.queues.release(record)
            ref, indexes = self.records.pop(record.offset)
            self.queues.add(buffered(ref, indexes, record.ticket), now_s=0.0)

    def _execute(self, count: int) -> None:
        rows: Counter[UUID] = Counter()
        while count:
            self._dispatch()
            if not self.at_replica:
                break
            chunk = self.at_replica.popleft()
            if len(chunk.items) > count:
                rest = BufferedChunk(chunk.job, chunk.items[count:], chunk.ticket)
                self.at_replica.appendleft(rest)
            job, items = self.jobs[chunk.job.job_id], min(count, len(chunk.items))
            if job.first_ran is None:
                job.first_ran = self.ran
            job.ran += items
            self.ran += items
            count -= items
            rows[chunk.job.job_id] += items
        self.rows_due.append(rows)
        if len(self.rows_due) > ROW_STEPS:
            for job_id, items in self.rows_due.popleft().items():
                self.jobs[job_id].rows += items
                self.changed.add(job_id)

    def _dispatch(self) -> None:
        pool = self.queues.pools.get("p")
        while pool is not None and pool.item_count:
            free = REPLICA_ITEMS - sum(len(chunk.items) for chunk in self.at_replica)
            if free < BATCH_ITEMS:
                return
            (queue,) = pool.by_fairness()
            turn = turn_items(len(pool.counters), items_per_s=RATE, item_count_max=BATCH_ITEMS)
            self.at_replica += self.queues.pop_batch(
                queue,
                item_count_max=BATCH_ITEMS,
                token_count_max=10**9,
                turn_items_max=turn,
            )


def jain_of(stack: VirtualStack, jobs: Sequence[Job], *, seconds: float) -> float:
    """Return Jain's index of what the jobs run in the next seconds."""
    before = [job.ran for job in jobs]
    stack.run(int(seconds / STEP_S))
    return jain_index([job.ran - old for job, old in zip(jobs, before, strict=True)])


@pytest.mark.parametrize("whales", [1, 4, 50])
@pytest.mark.parametrize("age_steps", [1, 10, 100])
def test_a_newcomer_runs_after_a_window_of_the_replicas_work(whales: int, age_steps: int) -> None:
    stack = VirtualStack()
    for number in range(1, whales + 1):
        stack.submit(number, 50_000)
    stack.run(age_steps)
    assert stack.run_until_first(stack.submit(1000, 10)) <= FIRST_RESULT_ITEMS


def test_tenants_that_come_together_begin_at_once_and_share_equally() -> None:
    stack = VirtualStack()
    jobs = []
    for number in range(1, 6):
        jobs.append(stack.submit(number, 60_000))
        stack.run(4)  # 0.2 s
    first_s = [stack.run_until_first(job) / RATE for job in jobs[-1:]]
    assert max(first_s) <= 0.5
    stack.run(int(5 / STEP_S))
    assert min(jain_of(stack, jobs, seconds=5) for _ in range(3)) >= 0.97


def test_one_of_a_thousand_tenants_gets_its_turn_and_its_share() -> None:
    stack = VirtualStack()
    jobs = [stack.submit(number, 500) for number in range(1, 1001)]
    stack.run(int(5 / STEP_S))
    assert jain_index([job.ran for job in jobs]) >= 0.9
    assert stack.ran == 5 * RATE


def test_dead_pools_cost_a_working_pool_no_items() -> None:
    stack = VirtualStack()
    whale = stack.submit(1, 500_000)
    stack.capacity |= {f"dead-{number}": PoolCapacity(1e6, 64) for number in range(3)}
    for number in range(2, 102):
        stack.submit(number, 2000, pool=f"dead-{number % 3}")
    stack.run(20)
    stack.capacity = {"p": stack.capacity["p"]}  # the others had filled the read-ahead by then
    before, started = whale.ran, stack.steps
    stack.run(50)
    assert whale.ran - before == int(RATE * STEP_S) * (stack.steps - started)
    assert stack.run_until_first(stack.submit(1000, 10)) <= FIRST_RESULT_ITEMS


def test_records_of_a_dead_pool_above_every_window_do_not_stop_others() -> None:
    """Such as those of replicas that died, or that another batcher had buffered."""
    stack = VirtualStack()
    for number in range(2, 302):
        ref = stack.submit(number, 0, pool="dead").ref
        stack.log += [(ref, range(first, first + 100)) for first in (0, 100, 200)]
    newcomer = stack.submit(1, 2 * RATE)
    assert stack.run_until_first(newcomer) == 0
    stack.run(int(2 / STEP_S))
    assert newcomer.ran == 2 * RATE
    assert len(stack.queues.deferred) > 300


def test_a_tenant_alone_is_never_deferred() -> None:
    stack = VirtualStack({"p": PoolCapacity(1e9, 64)})
    stack.submit(1, 500_000)
    for _ in range(50):
        stack.run(1)
        assert not len(stack.queues.deferred)
    assert stack.queues.item_count >= 19_000
