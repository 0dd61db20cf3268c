"""Goal: capacity records name the life cycle, GPU, load and notice of their replica."""

import asyncio
from typing import cast

import pytest
from msgspec.structs import replace

from core.clock import SystemClock
from core.runtime.supervised_tasks import SupervisedTasks
from gpu_consumers.class_workers import ClassWorker
from gpu_consumers.engines.engine import EngineUse, use_of
from gpu_consumers.engines.engine_slots import EngineSlots
from gpu_consumers.engines.simulated.simulated_engine import SimulatedEngine
from gpu_consumers.flow_control.capacity_publisher import CapacityPublisher, ReplicaIdentity
from gpu_consumers.flow_control.capacity_schedule import state_has_changed
from gpu_consumers.flow_control.loading_state import LoadingState
from gpu_consumers.flow_control.replica_state import GpuPlace, Lifecycle, PublishedState
from gpu_consumers.replica import Replica
from tests.support.clock import ManualClock
from tests.support.until import until_true
from tests.unit.gpu_consumers.fakes import RecordingProducer
from tests.unit.gpu_consumers.replicas import batch_of
from tests.unit.gpu_consumers.test_loading_state import FlushedProducer
from topics.clients.producer import RecordProducer
from topics.records.eligibility import is_starting
from topics.records.records import Capacity
from topics.tail_readers.topic_tail_reader import TopicTailReader

PLACE = GpuPlace(gpu_type="h100", zone="z1", is_spot=True)
CHAT = "/v1/chat/completions"


def publisher(log: RecordingProducer, state: PublishedState) -> CapacityPublisher:
    return CapacityPublisher(
        ReplicaIdentity(replica_id="r", pool="p", job_class="bulk", batch_items=100),
        cast(RecordProducer, log),
        lambda: 8,
        ManualClock(),
        state=state,
    )


def test_a_record_holds_the_state_of_the_replica() -> None:
    log = RecordingProducer()
    use = EngineUse(waiting=3, kv_use=0.5)
    state = PublishedState(place=PLACE, engine_use=lambda: use, leaves_at_s=99.0)
    capacity = publisher(log, state)
    capacity.record_arrival(batch_of(b"a", b"b"), 2)
    for _ in range(2):  # the first full window teaches nothing
        capacity.usage.rates.add_tokens(CHAT, 100, 0)
        capacity.usage.rates.close_window(0.5, was_full=True)
    capacity.publish_withdrawal()
    (record,) = log.capacities
    assert (record.lifecycle, record.gpu_type, record.zone, record.spot) == (
        "warm",
        "h100",
        "z1",
        True,
    )
    assert (record.load_tokens, record.tokens_per_s) == (2.0, 200.0)
    assert (record.waiting, record.kv_use, record.leaves_at_s) == (3, 0.5, 99.0)


async def test_a_change_is_published_at_once_and_the_load_is_not() -> None:
    log, state = RecordingProducer(), PublishedState()
    capacity = CapacityPublisher(
        ReplicaIdentity(replica_id="r", pool="p", job_class="bulk", batch_items=100),
        cast(RecordProducer, log),
        lambda: 8,
        SystemClock(),
        state=state,
    )
    publishing = asyncio.create_task(capacity.run())
    state.set_lifecycle(Lifecycle.DRAINING)
    state.set_notice(5.0)
    await until_true(lambda: bool(log.capacities))
    publishing.cancel()
    record = log.capacities[0]
    assert (record.lifecycle, record.leaves_at_s) == ("draining", 5.0)


@pytest.mark.parametrize(
    ("change", "is_change"),
    [
        ({"lifecycle": "draining"}, True),
        ({"leaves_at_s": 5.0}, True),
        ({"load_tokens": 1e6, "tokens_per_s": 1e4, "waiting": 50, "kv_use": 1.0}, False),
    ],
)
def test_readers_learn_of_the_state_before_the_repetition(
    change: dict[str, object], *, is_change: bool
) -> None:
    before = Capacity("r", 1, "p", "bulk", [0], {}, 10.0, 8, lifecycle="warm")
    assert state_has_changed(before, replace(before, **change)) is is_change


async def test_a_replica_that_starts_or_sleeps_counts_for_nothing() -> None:
    producer, state = FlushedProducer(), PublishedState(place=PLACE, lifecycle=Lifecycle.STARTING)
    loading = LoadingState(producer, "r1", "p", ("bulk",), "", state)
    async with loading.published():
        state.set_lifecycle(Lifecycle.ASLEEP)
        state.set_lifecycle(Lifecycle.ASLEEP)  # no change
        state.set_notice(7.0)
    state.set_lifecycle(Lifecycle.WARM)  # published by the replica that serves
    records = producer.capacities
    assert [one.lifecycle for one in records] == ["starting", "asleep", "asleep"]
    assert [one.leaves_at_s for one in records] == [0.0, 0.0, 7.0]
    for one in records:
        assert is_starting(one)
        assert (one.available, one.partitions, one.gpu_type, one.spot) == (False, [], "h100", True)


async def test_the_simulated_engine_knows_how_full_it_is() -> None:
    slots = EngineSlots(4)
    engine = SimulatedEngine("m", latency_ms=60_000, slots=slots, clock=SystemClock())
    assert use_of(engine) == EngineUse(0, 0.0)
    running = asyncio.create_task(engine.execute(CHAT, [b"{}"] * 6, lambda *_: None))
    await until_true(lambda: use_of(engine) == EngineUse(2, 1.0))
    running.cancel()
    assert use_of(object()) == EngineUse()


class FakeTasks:
    """Notes how long a replica waits for its items."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    async def wait_all(self, timeout_s: float) -> None:
        self.waits.append(timeout_s)


class FakePool:
    """A pool whose credit is withdrawn."""

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize(("leaves_at_s", "grace_s"), [(0.0, 8.0), (1060.0, 55.0), (1003.0, 0.0)])
async def test_a_replica_drains_until_shortly_before_its_gpu_goes(
    leaves_at_s: float, grace_s: float
) -> None:
    tasks, pool = FakeTasks(), FakePool()
    workers: list[ClassWorker] = []
    replica = Replica(
        workers=workers,
        pool=pool,  # type: ignore[arg-type]
        tasks=cast(SupervisedTasks, tasks),
        demand=cast(TopicTailReader, None),
        shutdown_grace_s=8.0,
        state=PublishedState(leaves_at_s=leaves_at_s),
        clock=ManualClock(wall_time_s=1000.0),
    )
    await replica._drain()
    assert (tasks.waits[0], pool.is_closed) == (grace_s, True)
    assert replica.state.lifecycle is Lifecycle.DRAINING
