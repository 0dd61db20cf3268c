"""Goal: an outcome is published when its item ends; its batch is committed after all of them."""

import asyncio
from typing import Any

import pytest

from gpu_consumers import class_workers
from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.payloads.bodies import ANSWER_BYTES_MAX
from tests.support.until import until_true
from tests.unit.gpu_consumers.fakes import run_loop
from tests.unit.gpu_consumers.replicas import BulkReplica, batch_of, delivered_batch
from topics.errors import DeliveryError


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


async def test_a_failed_publication_keeps_the_batch_uncommitted(bulk: BulkReplica) -> None:
    def fail(*_: object, **options: Any) -> None:
        options["on_delivery"](DeliveryError("results"))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bulk.log, "send", fail)
        bulk.tasks.start(bulk.worker.publish_early())
        bulk.engine.gate.clear()
        bulk.start_batch(batch_of(b"{}", b"hold", b"{}"))
        with pytest.raises(DeliveryError):
            await asyncio.wait_for(asyncio.shield(bulk.tasks.failed), 20)
    bulk.engine.gate.set()
    await run_loop()
    assert published(bulk) == []
    assert bulk.consumer.offsets == []


async def test_outcomes_that_need_the_object_store_wait_for_their_batch(bulk: BulkReplica) -> None:
    run = bulk.execution.accept_batch(delivered_batch(batch_of(b"{}", b"{}")))
    run.answers = {
        0: EngineAnswer(200, b"x" * (ANSWER_BYTES_MAX + 1)),
        1: EngineAnswer(200, b"{}"),
    }
    await bulk.execution.publish_early(run)
    assert published(bulk) == [1]
    assert run.may_publish_early


@pytest.mark.parametrize("is_redelivered", [False, True])
async def test_a_batch_ends_after_the_acknowledgement_of_its_early_outcomes(
    bulk: BulkReplica, is_redelivered: bool
) -> None:
    bulk.log.unacknowledged_kind = "outcomes"
    await start_with_a_slow_item(bulk, is_redelivered=is_redelivered)
    bulk.log.unacknowledged_kind = None
    recorded = len(bulk.attempts.recorded)
    bulk.engine.gate.set()
    await run_loop()
    assert (published(bulk), bulk.consumer.offsets) == ([0, 1, 2], [])
    assert len(bulk.attempts.recorded) == recorded
    bulk.log.acknowledge()
    await until_true(lambda: bulk.consumer.offsets == [0])
    assert not is_redelivered or not bulk.attempts.recorded[-1].units
