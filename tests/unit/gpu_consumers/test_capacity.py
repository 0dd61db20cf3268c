"""Goal: only items that the engine answered count for the rate; suspects are published at once."""

import asyncio
from uuid import UUID

import pytest

from gpu_consumers.flow_control import capacity_publisher as capacity_module
from gpu_consumers.flow_control.capacity_publisher import CapacityPublisher
from tests.support.until import until_true
from tests.unit.gpu_consumers.bulk_replica import BulkReplica, batch_of
from tests.unit.gpu_consumers.fakes import RecordingProducer, run_loop
from tests.unit.gpu_consumers.online_replica import OnlineReplica, call_chunk


async def measured_rate(capacity: CapacityPublisher) -> float:
    """Publish at once and return the measured rate."""
    publishing = asyncio.create_task(capacity.run())
    await run_loop(50)
    publishing.cancel()
    return capacity.items_per_s


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity_module, "REPEAT_S", 0.0)
    monkeypatch.setattr(capacity_module, "IDLE_REPEAT_S", 0.0)


async def test_answered_items_count_for_the_rate() -> None:
    replica = BulkReplica()
    replica.start_batch(batch_of(b"a", b"b"))
    await replica.wait_ended()
    assert await measured_rate(replica.capacity) == 10.0


async def test_dropped_and_requeued_items_do_not_count_for_the_rate() -> None:
    replica = BulkReplica()
    replica.engine.is_unavailable = True
    replica.start_batch(batch_of(b"a", b"b"))
    await replica.wait_ended()
    replica.controls.closed_ids.add(UUID(int=1))
    replica.start_batch(batch_of(b"c"))
    await replica.wait_ended()
    assert replica.capacity.ended_count == 3
    assert await measured_rate(replica.capacity) == 0.0


async def test_answered_calls_count_for_the_rate() -> None:
    replica = OnlineReplica()
    replica.engine.gate.set()
    replica.start_batch(call_chunk(1), call_chunk(2))
    await replica.wait_ended()
    assert await measured_rate(replica.capacity) == 10.0


async def test_aborted_calls_do_not_count_for_the_rate() -> None:
    replica = OnlineReplica()
    replica.callers.gone = True
    replica.start_batch(call_chunk(1), call_chunk(2))
    await replica.wait_ended()
    assert replica.capacity.ended_count == 2
    assert await measured_rate(replica.capacity) == 0.0


async def test_suspects_are_published_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(capacity_module, "IDLE_REPEAT_S", 60.0)
    log = RecordingProducer()
    replica = BulkReplica(log)
    publishing = asyncio.create_task(replica.capacity.run())
    await run_loop()
    with replica.attribution.suspect_present(), replica.attribution.suspect_present():
        await until_true(lambda: len(log.capacities) == 1)
    await until_true(lambda: len(log.capacities) == 2)
    publishing.cancel()
    assert [capacity.in_danger for capacity in log.capacities] == [True, False]
