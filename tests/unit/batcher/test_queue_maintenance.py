"""Goal: chunks of an unavailable pool make space for others and are not rewritten for nothing."""

from dataclasses import dataclass, field

import pytest

from batcher.database_clock import DatabaseClock
from batcher.faust_app.ordered_acks import OrderedAcks
from batcher.policy.credits import CreditLedger
from batcher.queueing.buffered_chunk import BufferedChunk
from batcher.queueing.deferred_records import DeferredRecord
from batcher.queueing.drop_policy import DropPolicy, ObsoleteItems
from batcher.queueing.maintenance import PIN_GAIN, POOL_SEARCH_S, REQUEUES_MAX, QueueMaintenance
from batcher.queueing.queues import Queues
from tests.support.clock import ManualClock
from tests.unit.batcher.builders import JobStates, buffered, capacity, job_ref

LIMIT_S = 30.0
CHUNKS = 200
SHARED = ("requests.bulk", 0)


@dataclass
class Recorder:
    is_full: bool = False
    requeued: list[BufferedChunk] = field(default_factory=list)

    def requeue(self, chunk: BufferedChunk) -> None:
        self.requeued.append(chunk)


class Bench:
    """Maintenance of queues that 200 chunks of ten items fill."""

    def __init__(self) -> None:
        self.clock, self.recorder = ManualClock(10_000.0), Recorder()
        self.number = 0
        self.queues = Queues(items_max=10 * CHUNKS, bytes_max=10**9, deferred_max=100)
        self.ledger = CreditLedger("b", "bulk", silence_s_max=3.0)
        self.acks = OrderedAcks(lambda _: None)
        self.states = JobStates()
        policy = DropPolicy(self.states, DatabaseClock(self.clock, None))
        self.maintenance = QueueMaintenance(
            queues=self.queues,
            ledger=self.ledger,
            acks=self.acks,
            sender=self.recorder,  # type: ignore[arg-type]
            obsolete_items=ObsoleteItems(self.acks, policy),
            clock=self.clock,
            job_class="bulk",
            hold_limit_s=LIMIT_S,
        )

    def add(self, pool: str, *, count: int = 1) -> list[BufferedChunk]:
        """Buffer so many chunks, each from a partition of its own: none pins another."""
        job, now_s = job_ref(pool=pool), self.clock.now_s
        chunks = []
        for number in range(count):
            partition = ("requests.bulk", number)
            ticket = self.acks.track(partition, None, item_count=10, now_s=now_s)
            chunks.append(buffered(job, range(10 * number, 10 * number + 10), ticket))
            self.queues.add(chunks[-1], now_s=now_s)
        return chunks

    def add_shared(self, pool: str, *, byte_count: int) -> BufferedChunk:
        """Buffer a chunk of this size from the shared partition."""
        self.number += 1
        now_s = self.clock.now_s
        ticket = self.acks.track(SHARED, None, item_count=1, now_s=now_s, byte_count=byte_count)
        chunk = buffered(job_ref(self.number, pool=pool), [0], ticket)
        self.queues.add(chunk, now_s=now_s)
        return chunk

    def defer(self, number: int) -> DeferredRecord:
        """Defer a record of this job from the shared partition."""
        ticket = self.acks.track(
            SHARED, None, item_count=1, now_s=self.clock.now_s, byte_count=1000
        )
        record = DeferredRecord(job_ref(number, pool="dead"), ticket, 0, 1, 1000, False)
        self.queues.deferred.add(record)
        return record

    def finish(self, chunk: BufferedChunk) -> None:
        """Dispatch and settle a chunk."""
        self.queues.remove(chunk)
        self.acks.settle(chunk.ticket, len(chunk.items))

    def grant(self, pool: str) -> None:
        granted = capacity(1000, replica_id=f"of {pool}", pool=pool)
        self.ledger.record_capacity(granted, now_s=self.clock.now_s)

    def pass_through(self, pool: str) -> None:
        """Buffer and dispatch a chunk of a pool."""
        for chunk in self.add(pool):
            self.queues.remove(chunk)

    def requeue_old(self) -> int:
        """Return how many chunks one run requeues."""
        self.recorder.requeued.clear()
        self.maintenance.requeue_old()
        return len(self.recorder.requeued)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_chunks_of_an_unavailable_pool_make_space_for_one_with_credit(bench: Bench) -> None:
    bench.pass_through("live")
    bench.add("dead", count=CHUNKS)
    bench.clock.now_s += LIMIT_S - 1
    bench.grant("live")
    assert bench.requeue_old() == 0
    bench.clock.now_s += 2
    bench.grant("live")
    assert bench.requeue_old() == REQUEUES_MAX
    assert {chunk.job.pool for chunk in bench.recorder.requeued} == {"dead"}
    assert bench.requeue_old() == 0  # there is space: nothing more before it is used
    bench.add("dead", count=REQUEUES_MAX)
    assert bench.requeue_old() == REQUEUES_MAX


def test_idle_pool_with_credit_requeues_one_chunk_per_run(bench: Bench) -> None:
    bench.pass_through("idle")
    bench.add("dead", count=CHUNKS)
    bench.clock.now_s += POOL_SEARCH_S + 1
    bench.grant("idle")
    for _ in range(3):
        assert bench.requeue_old() == 1
        bench.add("dead")
    bench.queues.remove(next(bench.queues.snapshot()))
    bench.add("idle")
    assert bench.requeue_old() == REQUEUES_MAX


def test_pool_without_any_arrival_requeues_one_chunk(bench: Bench) -> None:
    bench.add("dead", count=CHUNKS)
    bench.clock.now_s += LIMIT_S + 10
    bench.grant("new")
    assert bench.requeue_old() == 1


@pytest.mark.parametrize("granted", [None, "dead"])
def test_nothing_is_requeued_without_another_pool_with_credit(
    bench: Bench, granted: str | None
) -> None:
    bench.pass_through("other")
    bench.add("dead", count=CHUNKS)
    bench.clock.now_s += LIMIT_S + 10
    if granted is not None:
        bench.grant(granted)
    assert bench.requeue_old() == 0


@pytest.mark.parametrize("granted", [None, "dead"])
def test_pinning_chunk_is_requeued_once_it_saves_enough(bench: Bench, granted: str | None) -> None:
    bench.add_shared("dead", byte_count=1000)
    bench.clock.now_s += LIMIT_S + 10
    for _ in range(3):
        bench.finish(bench.add_shared("live", byte_count=1000))
        if granted is not None:
            bench.grant(granted)
        assert bench.requeue_old() == 0
    bench.finish(bench.add_shared("live", byte_count=1000))
    assert bench.requeue_old() == 1
    assert bench.recorder.requeued[0].job.pool == "dead"


def test_requeued_bytes_are_bounded_with_a_slow_second_pool(bench: Bench) -> None:
    """40 chunks of 200 kB wait on a partition that gets one of another pool every 10 s."""
    size = 200_000
    for _ in range(40):
        bench.add_shared("dead", byte_count=size)
    brought = rewritten = most_open = 0
    for second in range(7200):
        bench.clock.now_s += 1
        if second % 10 == 0:
            bench.finish(bench.add_shared("live", byte_count=size))
            brought += size
        bench.requeue_old()
        for chunk in list(bench.recorder.requeued):
            bench.acks.settle(chunk.ticket, len(chunk.items))
            bench.add_shared("dead", byte_count=size)
            rewritten += size
        most_open = max(most_open, bench.acks.open_count - 40)
    assert 0 < rewritten <= brought / PIN_GAIN["bulk"]
    # What a crash repeats is bounded by what waits, however long.
    assert most_open <= 40 * PIN_GAIN["bulk"]


def test_a_deferred_record_that_pins_is_read_whatever_its_quota(bench: Bench) -> None:
    deferred = bench.defer(1)
    for _ in range(4):
        bench.finish(bench.add_shared("live", byte_count=1000))
    bench.requeue_old()
    assert not deferred.is_urgent
    bench.clock.now_s += LIMIT_S
    bench.requeue_old()
    assert deferred.is_urgent


def test_deferred_records_of_closed_jobs_are_settled(bench: Bench) -> None:
    closed, kept = bench.defer(1), bench.defer(2)
    bench.states.close(1)
    bench.maintenance.drop_obsolete()
    assert list(bench.queues.deferred) == [kept]
    assert closed.ticket.open_count == 0


def test_empty_pools_without_replicas_are_forgotten(bench: Bench) -> None:
    bench.grant("known")
    for pool in ("known", "gone"):
        bench.pass_through(pool)
    bench.add("waiting")
    bench.maintenance.forget_pools()
    assert bench.queues.waiting() == {"known": 0, "waiting": 10}
    bench.add("gone")
    assert bench.queues.waiting()["gone"] == 10
