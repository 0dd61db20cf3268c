"""Goal: an outcome is published when its item ends; its batch is committed after all of them."""

import asyncio

import pytest

from gpu_consumers import class_workers
from tests.support.until import until_true
from tests.unit.gpu_consumers.replicas import BulkReplica, batch_of


@pytest.fixture(autouse=True)
def _short_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_workers, "_PUBLISH_INTERVAL_S", 0.001)


def published(bulk: BulkReplica) -> list[int]:
    return [outcome.index for outcome in bulk.log.outcomes]


async def start_with_a_slow_item(bulk: BulkReplica, *, is_redelivered: bool = False) -> None:
    """Start a batch whose second item waits for the gate; return when the first is published."""
    bulk.tasks.start(bulk.worker.publish_early())
    bulk.engine.gate.clear()
    bulk.start_batch(batch_of(b"{}", b"hold", b"{}"), is_redelivered=is_redelivered)
    await until_true(lambda: published(bulk) == [0])


@pytest.mark.parametrize("is_redelivered", [False, True])
async def test_each_outcome_is_published_once_while_others_run(
    bulk: BulkReplica, is_redelivered: bool
) -> None:
    await start_with_a_slow_item(bulk, is_redelivered=is_redelivered)
    assert bulk.consumer.offsets == []
    bulk.engine.gate.set()
    await until_true(lambda: bulk.consumer.offsets == [0])
    assert published(bulk) == [0, 1, 2]


async def test_a_batch_ends_after_the_acknowledgement_of_its_early_outcomes(
    bulk: BulkReplica,
) -> None:
    bulk.log.unacknowledged_kind = "outcomes"
    await start_with_a_slow_item(bulk)
    bulk.log.unacknowledged_kind = None
    bulk.engine.gate.set()
    await until_true(lambda: published(bulk) == [0, 1, 2])
    await asyncio.sleep(0.01)
    assert bulk.consumer.offsets == []
    bulk.log.acknowledge()
    await until_true(lambda: bulk.consumer.offsets == [0])
