"""Goal: a replica publishes the rate of answered items, its suspects and its old jobs."""

import asyncio
from uuid import UUID

import msgspec
import pytest
from prometheus_client import REGISTRY

from core.errors import PoolBusyError
from gpu_consumers import metrics
from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.flow_control import capacity_publisher, in_flight_jobs
from gpu_consumers.flow_control.capacity_publisher import CapacityPublisher
from gpu_consumers.flow_control.in_flight_jobs import IN_FLIGHT_S_MIN, REPEAT_S, InFlightJobs
from tests.support.until import until_true
from tests.unit.gpu_consumers.fakes import RecordingProducer, run_loop
from tests.unit.gpu_consumers.replicas import BulkReplica, OnlineReplica, batch_of, call_chunk


async def measured_rate(capacity: CapacityPublisher) -> float:
    """Publish at once and return the measured rate."""
    publishing = asyncio.create_task(capacity.run())
    await run_loop(50)
    publishing.cancel()
    return capacity.items_per_s


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity_publisher, "REPEAT_S", 0.0)
    monkeypatch.setattr(capacity_publisher, "IDLE_REPEAT_S", 0.0)


async def test_answered_items_and_calls_count_for_the_rate() -> None:
    bulk, online = BulkReplica(), OnlineReplica()
    bulk.start_batch(batch_of(b"a", b"b"))
    await bulk.wait_ended()
    await online.complete(call_chunk(1), call_chunk(2))
    assert await measured_rate(bulk.capacity) == await measured_rate(online.capacity) == 10.0


async def test_dropped_requeued_and_aborted_items_do_not_count_for_the_rate() -> None:
    bulk, online = BulkReplica(), OnlineReplica()
    bulk.engine.is_unavailable = online.callers.gone = True
    bulk.start_batch(batch_of(b"a", b"b"))
    await bulk.wait_ended()
    bulk.controls.closed_ids.add(UUID(int=1))
    bulk.start_batch(batch_of(b"c"))
    await bulk.wait_ended()
    await online.complete(call_chunk(1), call_chunk(2))
    assert (bulk.capacity.ended_count, online.capacity.ended_count) == (3, 2)
    assert await measured_rate(bulk.capacity) == await measured_rate(online.capacity) == 0.0


async def test_suspects_are_published_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity_publisher, "IDLE_REPEAT_S", 60.0)
    log = RecordingProducer()
    replica = BulkReplica(log)
    publishing = asyncio.create_task(replica.capacity.run())
    await run_loop()
    with replica.attribution.suspect_present(), replica.attribution.suspect_present():
        await until_true(lambda: len(log.capacities) == 1)
    await until_true(lambda: len(log.capacities) == 2)
    publishing.cancel()
    assert [capacity.in_danger for capacity in log.capacities] == [True, False]


@pytest.mark.parametrize(
    ("status", "is_available"), [(200, 1.0), (400, 1.0), (500, 0.0), (502, 0.0), (409, 0.0)]
)
async def test_only_executed_requests_prove_that_the_pool_is_available(
    monkeypatch: pytest.MonkeyPatch, status: int, is_available: float
) -> None:
    monkeypatch.setattr(capacity_publisher, "_BACKOFF_S_MIN", 0.0)
    replica = OnlineReplica()
    replica.pool.mark_unavailable()
    while replica.pool._probe is not None:
        await run_loop()
    replica.engine.answer = EngineAnswer(status, b"")
    await replica.complete(call_chunk(stream=False))
    assert replica.log.statuses == [status]
    assert REGISTRY.get_sample_value("millrace_pool_available") == is_available


@pytest.mark.parametrize("is_redelivered", [False, True])
async def test_refused_items_are_requeued_and_the_rest_of_the_batch_runs(
    is_redelivered: bool,
) -> None:
    replica = BulkReplica()
    replica.engine.gate.clear()
    (refused,) = batch_of(b"a", b"busy").parts
    (held,) = batch_of(b"hold", b"b", job_number=2).parts
    batch = msgspec.structs.replace(batch_of(b"c"), parts=[refused, held])
    replica.start_batch(batch, is_redelivered=is_redelivered)
    await asyncio.wait_for(replica.engine.holds.wait(), 20)
    replica.engine.gate.set()

    assert await replica.wait_ended() is None
    assert sorted(outcome.index for outcome in replica.log.outcomes) == [0, 0, 1]
    assert (replica.log.requeued_indexes, replica.consumer.offsets) == ([1], [0])
    assert replica.capacity.in_flight == 0
    assert metrics.POOL_AVAILABLE._value.get() == 1


@pytest.mark.parametrize(("position", "kept"), [(7_000, 7_001), (None, None)])
async def test_requeued_items_keep_their_position_in_the_order_of_their_job(
    position: int | None, kept: int | None
) -> None:
    replica = BulkReplica()
    (part,) = batch_of(b"a", b"busy", b"b").parts
    part = msgspec.structs.replace(part, position=position)
    replica.start_batch(msgspec.structs.replace(batch_of(b"c"), parts=[part]))
    await replica.wait_ended()
    (requeued,) = replica.log.requeued
    assert ([item.index for item in requeued.items], requeued.position) == ([1], kept)


async def test_a_refused_call_is_requeued(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = OnlineReplica()

    async def serve(*_: object) -> None:
        raise PoolBusyError

    monkeypatch.setattr(replica.engine, "serve", serve)
    replica.start_batch(call_chunk())
    await replica.wait_ended()
    assert len(replica.log.requeued_indexes) == 1
    assert metrics.POOL_AVAILABLE._value.get() == 1


def test_a_job_is_named_from_a_batch_of_some_age_until_its_last_item_ended() -> None:
    tracked, batch = InFlightJobs(), batch_of(b"a", b"b")
    tracked.add(batch, 2, now_s=0.0)
    assert tracked.job_ids_to_publish(now_s=IN_FLIGHT_S_MIN - 0.1) is None
    assert tracked.job_ids_to_publish(now_s=IN_FLIGHT_S_MIN) == [UUID(int=1)]
    assert tracked.job_ids_to_publish(now_s=IN_FLIGHT_S_MIN + REPEAT_S - 0.1) is None
    tracked.remove(batch, 1)
    assert tracked.job_ids_to_publish(now_s=IN_FLIGHT_S_MIN + REPEAT_S) == [UUID(int=1)]
    tracked.remove(batch, 1)
    assert tracked.job_ids_to_publish(now_s=IN_FLIGHT_S_MIN + 2 * REPEAT_S) == []
    assert tracked.job_ids_to_publish(now_s=IN_FLIGHT_S_MIN + 3 * REPEAT_S) is None


def test_a_batch_that_comes_twice_is_tracked_until_both_have_ended() -> None:
    tracked, batch = InFlightJobs(), batch_of(b"a")
    for _ in range(2):
        tracked.add(batch, 1, now_s=0.0)
    tracked.remove(batch, 1)
    assert tracked.job_ids_to_publish(now_s=IN_FLIGHT_S_MIN) == [UUID(int=1)]
    tracked.remove(batch, 1)
    tracked.remove(batch, 1)  # an end too many
    assert tracked.job_ids_to_publish(now_s=IN_FLIGHT_S_MIN + REPEAT_S) == []


def test_the_jobs_of_the_oldest_batches_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight_jobs, "JOBS_MAX", 3)
    tracked = InFlightJobs()
    for number in (3, 2, 2, 4, 1):
        tracked.add(batch_of(b"a", job_number=number), 1, now_s=0.0)
    assert tracked.job_ids_to_publish(now_s=IN_FLIGHT_S_MIN) == [
        UUID(int=number) for number in (3, 2, 4)
    ]
