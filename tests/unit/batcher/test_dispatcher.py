"""Goal: batches are dispatched when there is credit, at once to idle replicas, never without."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from batcher.database_clock import DatabaseClock
from batcher.faust_app.ordered_acks import OrderedAcks
from batcher.outbound.dispatcher import DISPATCH_SLICE_S_MAX, Dispatcher
from batcher.policy.batch_closing import BatchLimits
from batcher.policy.compute_model import ComputeModel
from batcher.policy.credits import CreditLedger, ReplicaCredit
from batcher.queueing.buffered_chunk import BatchKey, BufferedChunk
from batcher.queueing.drop_policy import DropPolicy, ObsoleteItems
from batcher.queueing.queues import Queues
from tests.support.clock import ManualClock
from tests.unit.batcher.builders import JobStates, buffered, call_ref, capacity, job_ref
from topics.records.records import EndpointCompute, JobRef


@dataclass
class Recorder:
    is_full: bool = False
    sent: list[tuple[str, BatchKey, list[BufferedChunk]]] = field(default_factory=list)
    on_sent: Callable[[], None] = lambda: None

    def send_batch(
        self,
        replica: ReplicaCredit,
        key: BatchKey,
        chunks: Sequence[BufferedChunk],
        *,
        now_s: float,
    ) -> None:
        self.sent.append((replica.capacity.replica_id, key, list(chunks)))
        self.on_sent()

    def sizes(self) -> list[int]:
        return [sum(len(chunk.items) for chunk in chunks) for _, _, chunks in self.sent]

    def replicas(self) -> list[str]:
        return [replica for replica, _, _ in self.sent]

    def jobs(self) -> list[int]:
        """Return the number of each batch's first job."""
        return [chunks[0].job.job_id.int for _, _, chunks in self.sent]


class Bench:
    """A dispatcher with a manual clock and a sender that only records."""

    def __init__(self, *, wait_s_max: float = 0.02) -> None:
        self.clock, self.recorder = ManualClock(100.0), Recorder()
        self.queues = Queues(items_max=1000, bytes_max=10**9)
        self.ledger = CreditLedger("b", "bulk", silence_s_max=3.0)
        self.acknowledged: list[object] = []
        self.acks = OrderedAcks(self.acknowledged.append)
        self.states, self.compute = JobStates(), ComputeModel()
        self.dead_callers: set[UUID] = set()
        time = DatabaseClock(self.clock, None)
        policy = DropPolicy(self.states, time, self._is_obsolete_call)
        self.dispatcher = Dispatcher(
            self.queues,
            self.ledger,
            self.recorder,  # type: ignore[arg-type]
            limits=BatchLimits(
                item_count_max=100,
                token_count_max=100_000,
                run_s_max=2.5,
                wait_s_max=wait_s_max,
                slack_s_min=5.0,
            ),
            compute=self.compute,
            settle_if_obsolete=ObsoleteItems(self.acks, policy).settle_if_obsolete,
            clock=self.clock,
        )

    def _is_obsolete_call(self, job: JobRef, /, *, since_s: float) -> bool:
        assert since_s <= self.clock.now_s
        return job.job_id in self.dead_callers

    def items(self, count: int, *, job: int = 1, **fields: Any) -> None:
        self._add(job_ref(job, **fields), count)

    def call(self, number: int, *, deadline_s: float = 1e9) -> None:
        self._add(call_ref(number, deadline_s=deadline_s), 1)

    def _add(self, job: JobRef, count: int) -> None:
        now_s = self.clock.now_s
        event = job.job_id.int
        ticket = self.acks.track(("requests.bulk", 0), event, item_count=count, now_s=now_s)
        self.queues.add(buffered(job, range(count), ticket), now_s=now_s)

    def grant(self, count: int, *, rate: float = 1000.0, replica: str = "r", **fields: Any) -> None:
        granted = capacity(count, replica_id=replica, items_per_s=rate, **fields)
        self.ledger.record_capacity(granted, now_s=self.clock.now_s)

    def use_slice(self, share: float) -> None:
        """Let each batch take this share of the time of a slice."""
        self.recorder.on_sent = lambda: self.clock.advance(share * DISPATCH_SLICE_S_MAX)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_nothing_is_dispatched_without_credit_or_while_the_producer_is_full(bench: Bench) -> None:
    bench.items(50)
    assert bench.dispatcher.dispatch() is None
    bench.grant(0)
    assert bench.dispatcher.dispatch() is None
    bench.grant(100)
    bench.recorder.is_full = True
    bench.dispatcher.dispatch()
    assert bench.recorder.sent == []


def test_idle_replica_gets_available_items_at_once(bench: Bench) -> None:
    bench.grant(200)
    bench.items(1)
    assert bench.dispatcher.dispatch() is None
    assert bench.recorder.sizes() == [1]


def test_full_batch_is_dispatched_at_once_without_splitting(bench: Bench) -> None:
    bench.grant(100, concurrency=1000)
    bench.items(100)
    chunk = next(bench.queues.snapshot())
    bench.dispatcher.dispatch()
    ((_, key, chunks),) = bench.recorder.sent
    assert chunks == [chunk]
    assert (key.pool, key.model, key.endpoint) == ("p", "m", "/v1/embeddings")


def test_busy_replica_gets_a_partial_batch_after_the_wait(bench: Bench) -> None:
    bench.grant(30, concurrency=1000)
    bench.items(100)
    wait_s = bench.dispatcher.dispatch()
    assert wait_s == pytest.approx(0.02)
    assert bench.recorder.sent == []
    bench.clock.now_s += 0.021
    bench.dispatcher.dispatch()
    assert bench.recorder.sizes() == [30]
    assert bench.queues.item_count == 70


def test_full_batches_of_one_key_do_not_restart_the_wait_of_another(bench: Bench) -> None:
    bench.grant(10_000, concurrency=100_000)
    bench.items(5, endpoint="/v1/score", job=99)
    for job in range(1, 6):
        bench.items(100, job=job)
        bench.dispatcher.dispatch()
        bench.clock.now_s += 0.006
    assert [key.endpoint for _, key, _ in bench.recorder.sent].count("/v1/score") == 1


def test_partial_batch_prefers_an_idle_replica_over_more_credit(bench: Bench) -> None:
    bench.grant(200, replica="busy", concurrency=1000)
    bench.grant(20, replica="idle", concurrency=8)
    bench.items(5)
    assert bench.dispatcher.dispatch() is None
    assert bench.recorder.replicas() == ["idle"]


def test_removed_job_does_not_close_a_batch_by_its_deadline(bench: Bench) -> None:
    bench.grant(30, concurrency=1000)
    bench.items(10, job=1, deadline_s=bench.clock.wall_s() + 4.0)
    (urgent,) = bench.queues.snapshot()
    bench.items(10, job=2)
    bench.queues.remove(urgent)
    bench.queues.update_ranks()
    assert bench.dispatcher.dispatch() == pytest.approx(0.02)
    assert bench.recorder.sent == []


def test_nearest_deadline_survives_rank_updates(bench: Bench) -> None:
    bench.grant(30, concurrency=1000)
    for number, deadline_s in ((1, 1e9), (2, bench.clock.wall_s() + 4.0), (3, 1e9)):
        bench.call(number, deadline_s=deadline_s)
    bench.queues.update_ranks()
    bench.dispatcher.dispatch()
    assert bench.recorder.sizes() == [3]


def test_slow_replica_gets_smaller_batches(bench: Bench) -> None:
    bench.grant(200, rate=4.0)
    bench.items(100)
    bench.dispatcher.dispatch()
    assert bench.recorder.sizes()[0] == 10


def test_credit_is_spent_where_most_is_free(bench: Bench) -> None:
    bench.grant(100, replica="small")
    bench.grant(150, replica="large")
    for job in range(1, 5):
        bench.items(100, job=job)
    bench.dispatcher.dispatch()
    bench.clock.now_s += 1
    bench.dispatcher.dispatch()
    assert bench.recorder.replicas() == ["large", "small", "large"]
    assert bench.recorder.sizes() == [100, 100, 50]
    assert bench.dispatcher.dispatched_count == 250


def test_pool_without_credit_blocks_no_other(bench: Bench) -> None:
    bench.items(100, job=1, pool="away")
    bench.items(100, job=2)
    bench.grant(100)
    bench.dispatcher.dispatch()
    assert bench.recorder.jobs() == [2]


def test_long_dispatch_yields_and_resumes_with_another_pool(bench: Bench) -> None:
    for job in range(1, 11):
        bench.items(100, job=job)
    bench.items(100, job=11, pool="q")
    bench.grant(1000)
    bench.grant(1000, replica="s", pool="q")
    bench.use_slice(0.6)
    slices = []
    while (wait_s := bench.dispatcher.dispatch()) is not None:
        assert wait_s == 0.0
        slices.append(bench.recorder.replicas())
        bench.recorder.sent.clear()
    assert slices[:2] == [["r", "r"], ["s", "r"]]
    assert bench.queues.item_count == 0


def test_pool_that_used_the_slice_is_visited_last(bench: Bench) -> None:
    bench.items(100, job=1)
    for job in (2, 3):
        bench.items(100, job=job, pool="q")
    bench.grant(1000)
    bench.grant(1000, replica="s", pool="q")
    bench.use_slice(1.1)
    assert bench.dispatcher.dispatch() == 0.0
    bench.items(100, job=4)
    assert bench.dispatcher.dispatch() == 0.0
    assert bench.recorder.replicas() == ["r", "s"]


def test_call_without_live_caller_is_settled_without_credit() -> None:
    bench = Bench(wait_s_max=0.0)
    bench.call(1)
    bench.call(2)
    bench.dead_callers.add(UUID(int=1))
    bench.grant(1)
    bench.dispatcher.dispatch()
    bench.dispatcher.dispatch()
    assert bench.recorder.jobs() == [2]
    assert bench.acknowledged == [1]
    assert bench.ledger.available("r", now_s=bench.clock.now_s) == 0


def test_calls_of_a_tenant_are_dispatched_by_deadline_then_order() -> None:
    bench = Bench(wait_s_max=0.0)
    for number, deadline_s in ((1, 50.0), (2, 40.0), (3, 50.0), (4, 30.0)):
        bench.call(number, deadline_s=deadline_s)
    for granted in range(1, 5):
        bench.grant(granted)
        bench.dispatcher.dispatch()
    assert bench.recorder.jobs() == [4, 2, 1, 3]


def test_many_calls_of_a_tenant_do_not_starve_another() -> None:
    bench = Bench(wait_s_max=0.0)
    for number in range(1, 21):
        bench.call(number)
    bench.items(1, job=99)
    for granted in range(1, 4):
        bench.grant(granted)
        bench.dispatcher.dispatch()
    assert 99 in bench.recorder.jobs()


def test_a_batch_does_not_wait_beyond_the_time_that_its_execution_needs(bench: Bench) -> None:
    """The margin is 5 s; 1,000 items a second and 1,000 at once take another second."""
    bench.compute.record_capacity(
        capacity(0, compute=[EndpointCompute("/v1/embeddings", 0.01, 0.04)])
    )
    bench.grant(30, concurrency=1000)
    bench.items(20, deadline_s=bench.clock.wall_s() + 5 + 1 + 20 * 10 * 0.01 + 0.01)
    wait_s = bench.dispatcher.dispatch()
    assert bench.recorder.sent == []
    assert wait_s == pytest.approx(0.01, abs=1e-6)
    bench.clock.advance(0.01)
    bench.dispatcher.dispatch()
    assert bench.recorder.sizes() == [20]
