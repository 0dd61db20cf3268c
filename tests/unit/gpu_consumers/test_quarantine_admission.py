"""Goal: new batches wait for units with two crashes; a moved partition runs no item twice."""

import pytest

from core.outcomes import Outcome
from gpu_consumers.quarantine.narrowing import SPLIT_COUNT
from tests.support.until import until_true
from tests.unit.gpu_consumers.fakes import MemoryAttemptLog, run_loop
from tests.unit.gpu_consumers.replicas import PARTITION, BulkReplica, batch_of
from topics.records.records import AttemptUnit, Batch


async def test_a_new_batch_runs_alongside_a_first_quarantine(bulk: BulkReplica) -> None:
    bulk.engine.gate.clear()
    bulk.start_batch(batch_of(b"hold", *[b"{}"] * 99), is_redelivered=True)
    await bulk.engine.holds.wait()
    bulk.start_batch(batch_of(b"{}"), offset=1)
    await until_true(lambda: bulk.consumer.offsets == [1])
    assert [len(run) for run in bulk.engine.executed] == [10, 1]
    bulk.engine.gate.set()

    assert await bulk.wait_ended() is None
    assert [len(run) for run in bulk.engine.executed] == [10, 1] + [10] * 9


async def test_a_new_batch_waits_for_a_unit_with_two_crashes() -> None:
    attempts, poison = MemoryAttemptLog(), batch_of(b"hold", b"{}")
    units = [AttemptUnit(0, 1, 2), AttemptUnit(1, 1, 2)]
    attempts.add(poison, *units, life=2, is_running=False)
    replica = BulkReplica(attempts=attempts)
    replica.engine.gate.clear()
    replica.start_batch(poison, is_redelivered=True)
    await replica.engine.holds.wait()
    replica.start_batch(batch_of(b"new"), offset=1)
    await run_loop(200)
    assert replica.engine.executed == [[b"hold"]]
    replica.engine.gate.set()

    assert await replica.wait_ended() is None
    assert replica.engine.executed == [[b"hold"], [b"new"], [b"{}"]]
    assert replica.engine.running_max == 1


async def test_ten_items_of_redelivered_batches_run_at_once(bulk: BulkReplica) -> None:
    bulk.engine.gate.clear()
    for offset, size in enumerate((4, 4, 4)):
        bulk.start_batch(batch_of(*[b"hold"] * size), is_redelivered=True, offset=offset)
    await run_loop(200)
    assert [len(run) for run in bulk.engine.executed] == [4, 4]
    assert sorted(attempt.is_running for attempt in bulk.attempts.latest.values()) == [True] * 2
    bulk.engine.gate.set()

    assert await bulk.wait_ended() is None
    assert [len(run) for run in bulk.engine.executed] == [4, 4, 4]
    assert bulk.engine.running_max == 2


@pytest.mark.parametrize("bodies", [[b"oom"], [b"oom", b"{}"], [b"{}", b"oom"]])
async def test_an_item_that_exceeds_the_memory_alongside_others_runs_alone_before_it_fails(
    bulk: BulkReplica, bodies: list[bytes]
) -> None:
    bulk.start_batch(batch_of(*bodies), is_redelivered=True)

    assert await bulk.wait_ended() is None
    assert bulk.engine.executed[0] == bodies
    assert bulk.engine.executed[1] == bodies[bodies.index(b"oom") :]
    runs = [attempt.is_running for attempt in bulk.attempts.recorded]
    assert runs[:3] == [True, False, True], "recorded as stopped between the two runs"
    failed = [o.index for o in bulk.log.outcomes if o.outcome is Outcome.FAILED]
    assert (failed, len(bulk.log.outcomes)) == ([bodies.index(b"oom")], len(bodies))


async def held(*, is_redelivered: bool) -> tuple[BulkReplica, Batch]:
    """Return a replica that holds a batch; its first item, or its first unit, is answered."""
    replica = BulkReplica()
    replica.engine.gate.clear()
    answered_count = SPLIT_COUNT if is_redelivered else 1
    batch = batch_of(*[b"{}"] * answered_count, *[b"hold"] * 3)
    replica.start_batch(batch, is_redelivered=is_redelivered)
    await replica.engine.holds.wait()
    return replica, batch


@pytest.mark.parametrize(
    ("lost", "requeued", "finished"), [(True, [], []), (False, [1, 2, 3], [0])]
)
async def test_a_revoked_partition_publishes_answers_and_requeues_open_items_unless_lost(
    lost: bool, requeued: list[int], finished: list[int]
) -> None:
    replica, _ = await held(is_redelivered=False)
    await replica.worker.on_revoke({(PARTITION[0], 1)}, lost=lost)
    assert replica.engine.running == 1
    await replica.worker.on_revoke({PARTITION}, lost=lost)
    assert (replica.log.requeued_indexes, replica.consumer.offsets) == (requeued, finished)
    assert await replica.wait_ended() is None

    assert (replica.engine.running, replica.capacity.in_flight) == (0, 0)
    assert [o.index for o in replica.log.outcomes] == [0]
    assert (replica.log.requeued_indexes, replica.consumer.offsets) == (requeued, finished)


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
