"""Goal: the published rate counts what the engine answered, and nothing that went back; danger is
told at once.
"""

import asyncio
from uuid import UUID

import pytest

from gpu_consumers.flow_control import capacity_publisher as capacity_module
from gpu_consumers.flow_control.capacity_publisher import CapacityPublisher
from tests.unit.gpu_consumers.bulk_replica import BulkReplica, batch_of
from tests.unit.gpu_consumers.fakes import RecordingProducer
from tests.unit.gpu_consumers.online_replica import OnlineReplica, call_chunk


async def measured_rate(capacity: CapacityPublisher) -> float:
    """Let it look at once, and say what it measured."""
    publishing = asyncio.create_task(capacity.run())
    for _ in range(50):
        await asyncio.sleep(0)
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
    await asyncio.sleep(0.01)
    with replica.attribution.suspect_present(), replica.attribution.suspect_present():
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.01)
    publishing.cancel()
    assert [capacity.in_danger for capacity in log.capacities] == [True, False]
