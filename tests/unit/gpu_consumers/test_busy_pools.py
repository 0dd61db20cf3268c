"""Goal: only the items that a busy pool refuses are requeued; the pool stays available."""

import asyncio

import msgspec
import pytest

from core.errors import PoolBusyError
from gpu_consumers import metrics
from tests.unit.gpu_consumers.bulk_replica import BulkReplica, batch_of
from tests.unit.gpu_consumers.online_replica import OnlineReplica, call_chunk


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
    await asyncio.wait_for(replica.engine.holds.wait(), 5)
    replica.engine.gate.set()

    assert await replica.wait_ended() is None
    assert sorted(outcome.index for outcome in replica.log.outcomes) == [0, 0, 1]
    assert (replica.log.requeued_indexes, replica.consumer.offsets) == ([1], [0])
    assert replica.capacity.in_flight == 0
    assert metrics.POOL_AVAILABLE._value.get() == 1


async def test_a_refused_call_is_requeued(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica = OnlineReplica()

    async def serve(*_: object) -> None:
        raise PoolBusyError

    monkeypatch.setattr(replica.engine, "serve", serve)
    replica.start_batch(call_chunk())
    await replica.wait_ended()
    assert len(replica.log.requeued_indexes) == 1
    assert metrics.POOL_AVAILABLE._value.get() == 1
