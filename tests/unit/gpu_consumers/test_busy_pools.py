"""Goal: an item that a busy pool does not take goes back alone; its pool stays open."""

import asyncio

import msgspec
import pytest

from core.errors import PoolBusyError
from gpu_consumers import metrics
from tests.unit.gpu_consumers.attempts import Attempts
from tests.unit.gpu_consumers.bulk_bench import Life, Log, TouchyEngine, batch_of, delivery
from tests.unit.gpu_consumers.online_bench import OnlineBench, call


@pytest.mark.parametrize("old", [False, True])
async def test_what_is_refused_goes_back_and_cuts_nothing_of_its_batch(old: bool) -> None:
    life = Life(Log(), Attempts(), TouchyEngine())
    life.engine.hold.clear()
    (refused,) = batch_of(b"a", b"busy").parts
    (held,) = batch_of(b"hold", b"b", job_number=2).parts
    batch = msgspec.structs.replace(batch_of(b"c"), parts=[refused, held])
    life.lane.begin(delivery(batch, old=old))
    await asyncio.wait_for(life.engine.holds.wait(), 5)
    life.engine.hold.set()

    assert await life.end() is None
    assert sorted(outcome.index for outcome in life.log.outcomes) == [0, 0, 1]
    assert (life.log.put_back, life.consumer.offsets) == ([1], [0])
    assert life.capacity.in_flight == 0
    assert metrics.POOL_AVAILABLE._value.get() == 1


async def test_a_call_that_is_refused_for_too_long_is_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = OnlineBench()

    async def serve(*_: object) -> None:
        raise PoolBusyError

    monkeypatch.setattr(bench.engine, "serve", serve)
    bench.begin(call())
    await bench.end()
    assert len(bench.log.put_back) == 1
    assert metrics.POOL_AVAILABLE._value.get() == 1
