"""Goal: a revoked or drained partition leaves no item to run twice, and charges none."""

from gpu_consumers.quarantine.narrowing import SPLIT_COUNT
from tests.unit.gpu_consumers.replicas import PARTITION, BulkReplica, batch_of
from topics.records.records import Batch


async def held(*, is_redelivered: bool) -> tuple[BulkReplica, Batch]:
    """Return a replica that holds a batch; its first item, or its first unit, is answered."""
    replica = BulkReplica()
    replica.engine.gate.clear()
    answered_count = SPLIT_COUNT if is_redelivered else 1
    batch = batch_of(*[b"{}"] * answered_count, *[b"hold"] * 3)
    replica.start_batch(batch, is_redelivered=is_redelivered)
    await replica.engine.holds.wait()
    return replica, batch


async def test_a_lost_partition_publishes_answers_and_requeues_nothing() -> None:
    replica, _ = await held(is_redelivered=False)
    await replica.worker.on_revoke({PARTITION}, lost=True)
    assert await replica.wait_ended() is None

    assert replica.engine.running == 0
    assert [o.index for o in replica.log.outcomes] == [0]
    assert replica.log.requeued_indexes == []
    assert replica.consumer.offsets == []
    assert replica.capacity.in_flight == 0


async def test_a_revoked_partition_requeues_open_items() -> None:
    replica, _ = await held(is_redelivered=False)
    await replica.worker.on_revoke({(PARTITION[0], 1)}, lost=False)
    assert replica.engine.running == 1
    await replica.worker.on_revoke({PARTITION}, lost=False)

    assert replica.log.requeued_indexes == [1, 2, 3]
    assert replica.consumer.offsets == [0]
    assert await replica.wait_ended() is None


async def test_a_revoked_redelivered_batch_is_not_charged_with_a_crash() -> None:
    replica, batch = await held(is_redelivered=True)
    await replica.worker.on_revoke({PARTITION}, lost=False)
    assert (replica.log.requeued_indexes, replica.consumer.offsets) == ([], [])
    said = replica.attempts.latest[batch.batch_id]
    assert not said.is_running
    assert [(unit.first, unit.count, unit.crashes) for unit in said.units] == [(SPLIT_COUNT, 3, 1)]

    after = BulkReplica(replica.log, replica.attempts)
    after.start_batch(batch, is_redelivered=True)
    assert await after.wait_ended() is None
    assert sorted(o.index for o in replica.log.outcomes) == [*range(SPLIT_COUNT + 3)]
    assert {attempt.life for attempt in replica.attempts.recorded} == {1, 2}


async def test_a_drain_requeues_units_and_deletes_attempts() -> None:
    replica, _ = await held(is_redelivered=True)
    replica.worker.requeue_all()
    assert await replica.wait_ended() is None

    assert replica.log.requeued_indexes == [*range(SPLIT_COUNT, SPLIT_COUNT + 3)]
    assert replica.consumer.offsets == [0]
    await replica.quarantine.delete_attempts(replica.consumer.is_committed)
    assert replica.attempts.latest == {}
