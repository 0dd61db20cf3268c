"""Goal: batches leave when there is credit, at once when the engine is idle, and never without."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import pytest

from batcher.database_clock import DatabaseClock
from batcher.faust_app.ordered_acks import OrderedAcks
from batcher.outbound.dispatcher import DISPATCH_SLICE_S_MAX, Dispatcher, DispatchRules
from batcher.policy.batch_closing import BatchLimits
from batcher.policy.credits import CreditLedger, ReplicaCredit
from batcher.queueing.buffered_chunk import BatchKey, BufferedChunk
from batcher.queueing.drop_policy import DropPolicy, ObsoleteItems
from batcher.queueing.queues import Queues
from core.states import CloseReason
from topics.records.records import CallRef, Capacity, Item, JobControl, JobRef


@dataclass
class HeldClock:
    now_s: float = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return 1000.0 + self.now_s


@dataclass
class Recorder:
    is_full: bool = False
    sent: list[tuple[str, BatchKey, list[BufferedChunk]]] = field(default_factory=list)
    on_sent: Callable[[], None] = lambda: None

    def send_batch(
        self,
        replica: ReplicaCredit,
        lane: BatchKey,
        taken: Sequence[BufferedChunk],
        *,
        now_s: float,
    ) -> None:
        self.sent.append((replica.capacity.replica_id, lane, list(taken)))
        self.on_sent()

    def sizes(self) -> list[int]:
        return [sum(len(held.items) for held in taken) for _, _, taken in self.sent]


class World:
    """A dispatcher with a clock that stands still and a log that only records."""

    def __init__(self, *, wait_s_max: float = 0.02) -> None:
        self.clock, self.recorder = HeldClock(), Recorder()
        self.queues = Queues(items_max=1000, bytes_max=10**9)
        self.ledger = CreditLedger("b", "bulk", silence_s_max=3.0)
        self.acknowledged: list[object] = []
        self.acks = OrderedAcks(self.acknowledged.append)
        self.closed: set[UUID] = set()
        self.dead_callers: set[UUID] = set()
        self.dispatcher = Dispatcher(
            self.queues,
            self.ledger,
            self.recorder,  # type: ignore[arg-type]
            rules=DispatchRules(
                limits=BatchLimits(
                    item_count_max=100,
                    token_count_max=100_000,
                    wait_s_max=wait_s_max,
                    slack_s_min=5.0,
                ),
                batch_s_max=2.5,
            ),
            settle_if_obsolete=ObsoleteItems(
                self.acks,
                DropPolicy(self, DatabaseClock(self.clock, None), self.is_gone),
            ).settle_if_obsolete,
            clock=self.clock,
        )

    def newer(self, job: JobRef) -> JobControl | None:
        """Every closed job has a newer state."""
        if job.job_id not in self.closed:
            return None
        return JobControl(job.job_id, job.version + 1, closed=CloseReason.CANCELLED)

    def is_gone(self, job: JobRef, /, *, since_s: float) -> bool:
        assert since_s <= self.clock.now_s
        return job.job_id in self.dead_callers

    def items(
        self,
        count: int,
        *,
        job: int = 1,
        pool: str = "p",
        endpoint: str = "/v1/embeddings",
        deadline_s: float = 1e9,
    ) -> None:
        ref = JobRef(
            job_id=UUID(int=job),
            day=1,
            tenant_id=UUID(int=job),
            model="m",
            model_version="1",
            pool=pool,
            endpoint=endpoint,
            input_key="k",
            deadline_s=deadline_s,
        )
        items = [Item(n, f"c{n}", b"{}", 10) for n in range(count)]
        ticket = self.acks.track(
            ("requests.bulk", 0), job, item_count=count, now_s=self.clock.now_s
        )
        self.queues.add(BufferedChunk(ref, items, ticket), now_s=self.clock.now_s)

    def call(self, request: int, *, deadline_s: float = 1e9) -> None:
        ref = JobRef(
            job_id=UUID(int=request),
            day=1,
            tenant_id=UUID(int=1),
            model="m",
            model_version="1",
            pool="p",
            endpoint="/v1/embeddings",
            input_key="",
            deadline_s=deadline_s,
            call=CallRef("api-1", 3),
        )
        ticket = self.acks.track(
            ("requests.interactive", 0), request, item_count=1, now_s=self.clock.now_s
        )
        self.queues.add(
            BufferedChunk(ref, [Item(0, "", b"{}", 10)], ticket), now_s=self.clock.now_s
        )

    def grant(
        self,
        count: int,
        *,
        concurrency: int = 8,
        rate: float = 1000.0,
        replica: str = "r",
        pool: str = "p",
    ) -> None:
        self.ledger.record_capacity(
            Capacity(
                replica_id=replica,
                epoch=1,
                pool=pool,
                job_class="bulk",
                partitions=[0, 1],
                granted={"b": count},
                items_per_s=rate,
                concurrency=concurrency,
            ),
            now_s=self.clock.now_s,
        )


@pytest.fixture
def world() -> World:
    return World()


def test_nothing_leaves_without_credit(world: World) -> None:
    world.items(50)
    assert world.dispatcher.dispatch() is None
    assert world.recorder.sent == []
    world.grant(0)
    assert world.dispatcher.dispatch() is None
    assert world.recorder.sent == []


def test_an_idle_engine_gets_what_there_is_at_once(world: World) -> None:
    world.grant(200)
    world.items(1)
    assert world.dispatcher.dispatch() is None
    assert world.recorder.sizes() == [1]


def test_a_full_batch_leaves_at_once_and_takes_the_chunk_whole(world: World) -> None:
    world.grant(100, concurrency=1000)
    world.items(100)
    held = next(world.queues.snapshot())
    world.dispatcher.dispatch()
    ((_, lane, taken),) = world.recorder.sent
    assert taken == [held]
    assert (lane.pool, lane.model, lane.endpoint) == ("p", "m", "/v1/embeddings")


def test_a_busy_engine_gets_a_part_only_after_the_wait(world: World) -> None:
    world.grant(30, concurrency=1000)
    world.items(100)
    wait_s = world.dispatcher.dispatch()
    assert wait_s == pytest.approx(0.02)
    assert world.recorder.sent == []
    world.clock.now_s += 0.021
    world.dispatcher.dispatch()
    assert world.recorder.sizes() == [30]
    assert world.queues.item_count == 70


def test_full_batches_of_one_lane_do_not_restart_the_wait_of_another(world: World) -> None:
    world.grant(10_000, concurrency=100_000)
    world.items(5, endpoint="/v1/score", job=99)
    for job in range(1, 6):
        world.items(100, job=job)
        world.dispatcher.dispatch()
        world.clock.now_s += 0.006
    assert [lane.endpoint for _, lane, _ in world.recorder.sent].count("/v1/score") == 1


def test_a_part_goes_to_an_idle_replica_and_not_to_a_busy_one_with_more_credit(
    world: World,
) -> None:
    world.grant(200, replica="busy", concurrency=1000)
    world.grant(20, replica="idle", concurrency=8)
    world.items(5)
    assert world.dispatcher.dispatch() is None
    assert [replica for replica, _, _ in world.recorder.sent] == ["idle"]


def test_a_job_that_left_near_its_deadline_hurries_nobody_behind_it(world: World) -> None:
    world.grant(30, concurrency=1000)
    world.items(10, job=1, deadline_s=world.clock.wall_s() + 4.0)
    (urgent,) = world.queues.snapshot()
    world.items(10, job=2)
    world.queues.remove(urgent)
    world.queues.update_ranks()
    assert world.dispatcher.dispatch() == pytest.approx(0.02)
    assert world.recorder.sent == []


def test_the_nearest_deadline_counts_however_often_it_is_looked_for(world: World) -> None:
    world.grant(30, concurrency=1000)
    for request, deadline_s in ((1, 1e9), (2, world.clock.wall_s() + 4.0), (3, 1e9)):
        world.call(request, deadline_s=deadline_s)
    world.queues.update_ranks()
    world.dispatcher.dispatch()
    assert world.recorder.sizes() == [3]


def test_an_interactive_item_never_waits_for_company() -> None:
    world = World(wait_s_max=0.0)
    world.grant(1, concurrency=1000)
    world.items(1)
    assert world.dispatcher.dispatch() is None
    assert world.recorder.sizes() == [1]


def test_a_short_deadline_does_not_wait(world: World) -> None:
    world.grant(30, concurrency=1000)
    world.items(10, deadline_s=world.clock.wall_s() + 4.0)
    world.dispatcher.dispatch()
    assert world.recorder.sizes() == [10]


def test_a_slow_replica_gets_batches_of_its_own_time(world: World) -> None:
    world.grant(200, rate=4.0)
    world.items(100)
    world.dispatcher.dispatch()
    assert world.recorder.sizes()[0] == 10


def test_credit_is_spent_and_batches_go_where_most_of_it_is(world: World) -> None:
    world.grant(100, replica="small")
    world.grant(150, replica="large")
    for job in range(1, 5):
        world.items(100, job=job)
    world.dispatcher.dispatch()
    world.clock.now_s += 1
    world.dispatcher.dispatch()
    assert [replica for replica, _, _ in world.recorder.sent] == ["large", "small", "large"]
    assert world.recorder.sizes() == [100, 100, 50]
    assert world.dispatcher.dispatched_count == 250


def test_credit_is_void_after_silence(world: World) -> None:
    world.grant(100)
    world.clock.now_s += 3.5
    world.items(10)
    world.dispatcher.dispatch()
    assert world.recorder.sent == []


def test_items_of_a_closed_job_are_settled_and_cost_no_credit(world: World) -> None:
    world.items(100, job=1)
    world.items(100, job=2)
    world.closed.add(UUID(int=1))
    world.grant(100)
    world.dispatcher.dispatch()
    assert [taken[0].job.job_id for _, _, taken in world.recorder.sent] == [UUID(int=2)]
    assert world.acknowledged == [1]
    assert world.queues.item_count == 0


def test_nothing_leaves_while_the_producer_is_full(world: World) -> None:
    world.grant(100)
    world.items(100)
    world.recorder.is_full = True
    world.dispatcher.dispatch()
    assert world.recorder.sent == []


def test_a_pool_without_credit_holds_no_other_back(world: World) -> None:
    world.items(100, job=1, pool="away")
    world.items(100, job=2)
    world.grant(100)
    world.dispatcher.dispatch()
    assert [taken[0].job.job_id for _, _, taken in world.recorder.sent] == [UUID(int=2)]


def test_a_long_turn_ends_and_the_next_one_begins_with_another_pool(world: World) -> None:
    for job in range(1, 11):
        world.items(100, job=job)
    world.items(100, job=11, pool="q")
    world.grant(1000)
    world.grant(1000, replica="s", pool="q")

    def take_time() -> None:
        world.clock.now_s += 0.6 * DISPATCH_SLICE_S_MAX

    world.recorder.on_sent = take_time
    turns = []
    while (wait_s := world.dispatcher.dispatch()) is not None:
        assert wait_s == 0.0
        turns.append([replica for replica, _, _ in world.recorder.sent])
        world.recorder.sent.clear()
    assert turns[:2] == [["r", "r"], ["s", "r"]]
    assert world.queues.item_count == 0


def test_a_pool_that_took_the_turn_is_last_in_the_next_though_it_has_drained(world: World) -> None:
    world.items(100, job=1)
    for job in (2, 3):
        world.items(100, job=job, pool="q")
    world.grant(1000)
    world.grant(1000, replica="s", pool="q")

    def take_time() -> None:
        world.clock.now_s += 1.1 * DISPATCH_SLICE_S_MAX

    world.recorder.on_sent = take_time
    assert world.dispatcher.dispatch() == 0.0
    world.items(100, job=4)
    assert world.dispatcher.dispatch() == 0.0
    assert [replica for replica, _, _ in world.recorder.sent] == ["r", "s"]


def test_a_call_that_nobody_waits_for_is_settled_and_costs_no_credit() -> None:
    world = World(wait_s_max=0.0)
    world.call(1)
    world.call(2)
    world.dead_callers.add(UUID(int=1))
    world.grant(1)
    world.dispatcher.dispatch()
    world.dispatcher.dispatch()
    assert [taken[0].job.job_id for _, _, taken in world.recorder.sent] == [UUID(int=2)]
    assert world.acknowledged == [1]
    assert world.ledger.available("r", now_s=world.clock.now_s) == 0


def test_calls_of_a_tenant_leave_by_deadline_and_then_in_order() -> None:
    world = World(wait_s_max=0.0)
    for request, deadline_s in ((1, 50.0), (2, 40.0), (3, 50.0), (4, 30.0)):
        world.call(request, deadline_s=deadline_s)
    for granted in range(1, 5):
        world.grant(granted)
        world.dispatcher.dispatch()
    order = [taken[0].job.job_id.int for _, _, taken in world.recorder.sent]
    assert order == [4, 2, 1, 3]


def test_a_tenants_many_calls_do_not_come_before_anothers_one() -> None:
    world = World(wait_s_max=0.0)
    for request in range(1, 21):
        world.call(request)
    world.items(1, job=99)
    for granted in range(1, 4):
        world.grant(granted)
        world.dispatcher.dispatch()
    assert 99 in [taken[0].job.tenant_id.int for _, _, taken in world.recorder.sent]
