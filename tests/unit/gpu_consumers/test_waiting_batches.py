"""Goal: an outcome is published when its item ends; a batch waits for its own outcomes only."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from gpu_consumers import class_workers
from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.payloads.bodies import ANSWER_BYTES_MAX
from tests.support.until import until_true
from tests.unit.gpu_consumers.fakes import run_loop
from tests.unit.gpu_consumers.replicas import (
    PARTITION,
    BulkReplica,
    batch_of,
    delivered_batch,
    job_ref,
)
from topics.errors import DeliveryError
from topics.records.records import Batch, Chunk, Item

DEAD_JOB, HEALTHY_JOB = 3, 4  # a job's number is its partition of `results`


def mixed_batch() -> Batch:
    """A batch of two jobs, of which the first is on the unavailable partition."""
    dead = [Item(0, "a", b"{}", 1)]
    healthy = [Item(0, "b", b"{}", 1), Item(1, "c", b"hold", 1)]
    parts = [Chunk(job_ref(DEAD_JOB), dead), Chunk(job_ref(HEALTHY_JOB), healthy)]
    return Batch(uuid4(), "b", parts)


@pytest.fixture(autouse=True)
def _short_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_workers, "_PUBLISH_INTERVAL_S", 0.001)


@pytest.fixture
def replica(bulk: BulkReplica) -> BulkReplica:
    bulk.log.unavailable = {DEAD_JOB}
    return bulk


async def test_batches_of_other_jobs_end_while_one_waits(replica: BulkReplica) -> None:
    replica.start_batch(batch_of(b"{}", job_number=DEAD_JOB), offset=0)
    replica.start_batch(batch_of(b"{}", job_number=HEALTHY_JOB), offset=1)
    await until_true(lambda: replica.consumer.offsets == [1])
    replica.log.acknowledge()
    await until_true(lambda: replica.consumer.offsets == [1, 0])
    assert len(replica.log.outcomes) == 2


async def test_early_outcomes_of_a_healthy_job_do_not_wait_for_another_job_of_the_batch(
    replica: BulkReplica,
) -> None:
    replica.tasks.start(replica.worker.publish_early())
    replica.engine.gate.clear()
    replica.start_batch(mixed_batch())
    await until_true(lambda: len(replica.log.outcomes) == 2)
    replica.engine.gate.set()
    await until_true(lambda: len(replica.log.outcomes) == 3)
    assert replica.consumer.offsets == []


async def test_outcomes_wait_outside_of_a_full_producer(replica: BulkReplica) -> None:
    replica.log.is_full = True
    replica.start_batch(batch_of(b"{}", job_number=DEAD_JOB), offset=0)
    replica.start_batch(batch_of(b"{}", job_number=HEALTHY_JOB), offset=1)
    await until_true(lambda: replica.consumer.offsets == [1])
    assert len(replica.log.outcomes) == 1
    replica.log.acknowledge()
    await until_true(lambda: replica.consumer.offsets == [1, 0])
    assert len(replica.log.outcomes) == 2


async def test_a_waiting_batch_is_requeued_and_not_executed_again(replica: BulkReplica) -> None:
    replica.start_batch(batch_of(b"a", job_number=DEAD_JOB), offset=0)
    await run_loop()
    replica.worker.requeue_pinning(PARTITION, [0])
    replica.worker.requeue_pinning(PARTITION, [0])
    await until_true(lambda: replica.consumer.offsets == [0])
    ((partition, requeued),) = replica.log.batches
    assert partition == PARTITION[1]
    assert [item.body for part in requeued.parts for item in part.items] == [b"a"]

    replica.worker.start_batch(delivered_batch(requeued, offset=9))
    await run_loop()
    replica.worker.requeue_pinning(PARTITION, [9])
    await until_true(lambda: replica.consumer.offsets == [0, 9])
    (_, again) = replica.log.batches[1]
    replica.worker.start_batch(delivered_batch(again, offset=20))
    await run_loop()
    assert replica.consumer.offsets == [0, 9]

    replica.log.acknowledge()
    await until_true(lambda: replica.consumer.offsets == [0, 9, 20])
    assert replica.engine.executed == [[b"a"]]
    assert len(replica.log.outcomes) == 1


async def test_a_requeued_batch_that_ended_before_its_delivery_is_reported(
    replica: BulkReplica,
) -> None:
    replica.start_batch(batch_of(b"a", job_number=DEAD_JOB), offset=0)
    await run_loop()
    replica.worker.requeue_pinning(PARTITION, [0])
    await run_loop()
    replica.log.acknowledge()
    await run_loop()
    replica.worker.start_batch(delivered_batch(replica.log.batches[0][1], offset=9))
    await until_true(lambda: 9 in replica.consumer.offsets)
    assert replica.engine.executed == [[b"a"]]


async def test_only_the_jobs_that_wait_are_requeued(replica: BulkReplica) -> None:
    replica.start_batch(mixed_batch(), offset=0)
    await run_loop()
    replica.worker.requeue_pinning(PARTITION, [0])
    await until_true(lambda: replica.log.batches)
    ((_, requeued),) = replica.log.batches
    assert [part.job.job_id.int for part in requeued.parts] == [DEAD_JOB]


async def test_a_running_batch_is_not_requeued(replica: BulkReplica) -> None:
    replica.engine.gate.clear()
    replica.start_batch(mixed_batch(), offset=0)
    await replica.engine.holds.wait()
    replica.worker.requeue_pinning(PARTITION, [0])
    await run_loop()
    assert replica.log.batches == []
    replica.engine.gate.set()


async def test_the_next_owner_runs_a_requeued_batch(replica: BulkReplica) -> None:
    replica.start_batch(batch_of(b"a", job_number=DEAD_JOB), offset=0)
    await run_loop()
    replica.worker.requeue_pinning(PARTITION, [0])
    await until_true(lambda: replica.log.batches)
    await replica.worker.on_revoke([PARTITION], lost=False)
    replica.worker.start_batch(delivered_batch(replica.log.batches[0][1], offset=9))
    await until_true(lambda: replica.engine.executed == [[b"a"], [b"a"]])


async def test_revoked_partitions_do_not_wait_for_unavailable_ones(replica: BulkReplica) -> None:
    replica.start_batch(batch_of(b"a", job_number=DEAD_JOB), offset=0)
    await run_loop()
    await replica.worker.on_revoke([PARTITION], lost=False)
    assert [run.is_published for run in replica.execution.runs] == [True]


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
