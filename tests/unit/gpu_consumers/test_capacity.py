"""Goal: the published rate counts what the engine answered, and nothing that went back; danger is
told at once.
"""

import asyncio
from uuid import UUID

import pytest

from gpu_consumers.flow_control import capacity_publisher as capacity_module
from gpu_consumers.flow_control.capacity_publisher import CapacityPublisher
from tests.unit.gpu_consumers.attempts import Attempts
from tests.unit.gpu_consumers.bulk_bench import Life, Log, TouchyEngine, batch_of, delivery
from tests.unit.gpu_consumers.online_bench import OnlineBench, call


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


async def test_items_that_were_answered_have_a_rate() -> None:
    life = Life(Log(), Attempts(), TouchyEngine())
    life.lane.begin(delivery(batch_of(b"a", b"b")))
    await life.end()
    assert await measured_rate(life.capacity) == 10.0


async def test_items_that_are_skipped_or_go_back_have_none() -> None:
    life = Life(Log(), Attempts(), TouchyEngine())
    life.engine.unavailable = True
    life.lane.begin(delivery(batch_of(b"a", b"b")))
    await life.end()
    life.closed.closed.add(UUID(int=1))
    life.lane.begin(delivery(batch_of(b"c")))
    await life.end()
    assert life.capacity.ended_count == 3
    assert await measured_rate(life.capacity) == 0.0


async def test_calls_that_were_answered_have_a_rate() -> None:
    bench = OnlineBench()
    bench.engine.go.set()
    bench.begin(call(1), call(2))
    await bench.end()
    assert await measured_rate(bench.capacity) == 10.0


async def test_calls_that_nobody_waited_for_have_none() -> None:
    bench = OnlineBench()
    bench.known.gone = True
    bench.begin(call(1), call(2))
    await bench.end()
    assert bench.capacity.ended_count == 2
    assert await measured_rate(bench.capacity) == 0.0


async def test_it_says_at_once_whether_something_here_may_end_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(capacity_module, "IDLE_REPEAT_S", 60.0)
    log = Log()
    life = Life(log, Attempts(), TouchyEngine())
    publishing = asyncio.create_task(life.capacity.run())
    await asyncio.sleep(0.01)
    with life.trials.danger(), life.trials.danger():
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.01)
    publishing.cancel()
    assert [capacity.in_danger for capacity in log.capacities] == [True, False]
