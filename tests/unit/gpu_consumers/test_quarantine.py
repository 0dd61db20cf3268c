"""Goal: only poison and too large items fail; a first delivery records no attempt."""

import asyncio
import itertools
from uuid import UUID

import msgspec
import pytest

from core.errors import EngineDeadError, SchemaTooNewError
from core.outcomes import Outcome
from gpu_consumers.inflight.batch_run import BatchAbortReason
from gpu_consumers.quarantine.narrowing import initial_units
from tests.support.memory_objects import MemoryStore
from tests.support.until import until_true
from tests.unit.gpu_consumers.fakes import (
    FaultyEngine,
    MemoryAttemptLog,
    RecordingProducer,
    SuspectDelay,
)
from tests.unit.gpu_consumers.replicas import BulkReplica, batch_of
from topics.records.attempts import AttemptUnit, BatchAttempt
from topics.records.records import Batch, Item, ItemOutcome


def code_of(outcome: ItemOutcome) -> str:
    code: str = msgspec.json.decode(outcome.body)["error"]["code"]
    return code


def results(log: RecordingProducer) -> dict[int, tuple[Outcome, int]]:
    """Return the first outcome and attempt of each item."""
    found: dict[int, tuple[Outcome, int]] = {}
    for outcome in log.outcomes:
        found.setdefault(outcome.index, (outcome.outcome, outcome.attempt))
    return found


def item_count(units: list[AttemptUnit]) -> int:
    return sum(unit.count for unit in units)


async def crashes_until_finished(
    batch: Batch, log: RecordingProducer, attempts: MemoryAttemptLog
) -> int:
    """Deliver a batch to new replicas until one finishes it; return the count of crashes."""
    for crashes in itertools.count():
        replica = BulkReplica(log, attempts)
        replica.start_batch(batch, is_redelivered=crashes > 0)
        failure = await replica.wait_ended()
        if failure is None:
            assert replica.consumer.offsets == [0]
            return crashes
        assert isinstance(failure, EngineDeadError)
        assert replica.consumer.offsets == []
    raise AssertionError


async def test_a_first_delivery_records_no_attempt_and_runs_alongside_others(
    bulk: BulkReplica,
) -> None:
    bulk.start_batch(batch_of(b"{}", b"{}"))
    bulk.start_batch(batch_of(b"{}", b"{}"), offset=1)

    assert await bulk.wait_ended() is None
    assert bulk.attempts.recorded == []
    assert bulk.engine.running_max == 2
    assert sorted(bulk.consumer.offsets) == [0, 1]


async def test_a_batch_that_cannot_start_ends_the_process(bulk: BulkReplica) -> None:
    bulk.controls.failure = SchemaTooNewError()
    bulk.tasks.call_from_thread(bulk.start_batch, batch_of(b"{}"))

    with pytest.raises(SchemaTooNewError):
        await asyncio.wait_for(bulk.tasks.failed, 20)
    assert bulk.consumer.offsets == []


async def test_each_poison_item_fails_alone_after_three_crashes() -> None:
    bodies = [b"{}"] * 100
    for index in (17, 18, 55):
        bodies[index] = b"crash"
    log, attempts = RecordingProducer(), MemoryAttemptLog()
    crashes = await crashes_until_finished(batch_of(*bodies), log, attempts)

    outcomes = results(log)
    assert {index for index, (end, _) in outcomes.items() if end is Outcome.FAILED} == {17, 18, 55}
    assert {index for index, (end, _) in outcomes.items() if end is Outcome.SUCCEEDED} == set(
        range(100)
    ) - {17, 18, 55}
    assert crashes == 1 + 2 + 3  # the batch, two tenths, each item alone
    failed = [o for o in log.outcomes if o.outcome is Outcome.FAILED]
    assert {(code_of(o), o.retryable) for o in failed} == {("item_crashes_engine", False)}
    assert {o.attempt for o in failed} == {3}
    assert [attempt.units for attempt in attempts.latest.values()] == [[]]
    assert len(log.outcomes) == 100  # items that ended before a crash do not run again
    # Of the first end nothing is recorded; each later one is of a tenth or of an item alone.
    assert {job_id for job_id, _ in log.process_ends} == {UUID(int=1)}
    assert len(set(log.process_ends)) == crashes - 1


async def test_a_single_item_runs_three_times_before_it_fails() -> None:
    log = RecordingProducer()
    assert await crashes_until_finished(batch_of(b"crash"), log, MemoryAttemptLog()) == 3
    assert results(log) == {0: (Outcome.FAILED, 3)}


async def test_redelivered_batches_run_in_tenths_one_after_the_other(bulk: BulkReplica) -> None:
    for offset in range(2):
        bulk.start_batch(batch_of(*[b"{}"] * 100), is_redelivered=True, offset=offset)
    bulk.start_batch(batch_of(b"{}"), offset=2)

    assert await bulk.wait_ended() is None
    assert bulk.engine.running_max == 1
    # A new batch does not wait while the log of attempts is read.
    assert [len(run) for run in bulk.engine.executed] == [1] + [10] * 20
    for batch_id in {attempt.batch_id for attempt in bulk.attempts.recorded}:
        attempts = [attempt for attempt in bulk.attempts.recorded if attempt.batch_id == batch_id]
        runs = [item_count(attempt.units) for attempt in attempts if attempt.is_running]
        pauses = [item_count(attempt.units) for attempt in attempts if not attempt.is_running]
        assert (runs, pauses) == ([*range(100, 0, -10)], [*range(90, -1, -10)])
    await bulk.quarantine.delete_attempts(bulk.consumer.is_committed)
    assert bulk.attempts.latest == {}
    assert len(bulk.log.outcomes) == 201


async def test_a_batch_that_was_running_at_a_crash_runs_last() -> None:
    poison, suspect, new = batch_of(b"crash"), batch_of(b"{}", b"{}"), batch_of(b"{}", b"{}", b"{}")
    log, attempts = RecordingProducer(), MemoryAttemptLog()
    attempts.add(poison, *initial_units(1), is_running=True)
    replica = BulkReplica(log, attempts, suspect_delay_s=0.05)
    replica.start_batch(poison, is_redelivered=True)
    replica.start_batch(suspect, is_redelivered=True, offset=1)
    replica.start_batch(new, offset=2)

    assert isinstance(await replica.wait_ended(), EngineDeadError)
    assert sorted(len(run) for run in replica.engine.executed[:2]) == [2, 3]
    assert replica.engine.executed[2:] == [[b"crash"]]


async def test_units_with_fewest_crashes_run_first_across_batches() -> None:
    log, attempts = RecordingProducer(), MemoryAttemptLog()
    batches = [batch_of(b"crash", b"{}", b"{}"), batch_of(b"crash", b"{}", b"{}", b"{}")]
    for batch in batches:
        units = [AttemptUnit(0, 1, 1), AttemptUnit(1, len(batch.parts[0].items) - 1, 1)]
        attempts.add(batch, *units, is_running=True)
    replica = BulkReplica(log, attempts, suspect_delay_s=0.02)
    for offset, batch in enumerate(batches):
        replica.start_batch(batch, is_redelivered=True, offset=offset)

    assert isinstance(await replica.wait_ended(), EngineDeadError)
    assert sorted(replica.engine.executed[:2]) == [[b"{}"] * 2, [b"{}"] * 3]
    assert replica.engine.executed[2:] == [[b"crash"]]


async def test_a_crash_between_two_units_is_charged_to_neither() -> None:
    log, attempts = RecordingProducer(), MemoryAttemptLog()
    batch, poison = batch_of(b"hold", *[b"{}"] * 19), batch_of(b"crash")
    replica = BulkReplica(log, attempts)
    replica.engine.gate.clear()
    replica.start_batch(batch, is_redelivered=True)
    await replica.engine.holds.wait()
    replica.start_batch(poison, offset=1)
    await asyncio.sleep(0)
    replica.engine.gate.set()
    assert isinstance(await replica.wait_ended(), EngineDeadError)
    assert attempts.latest[batch.batch_id] == replica.attribution.host.stamp(
        BatchAttempt(batch.batch_id, 1, [AttemptUnit(10, 10, 1)], False)
    )

    after = BulkReplica(log, attempts)
    after.start_batch(batch, is_redelivered=True)
    assert await after.wait_ended() is None
    assert [len(run) for run in after.engine.executed] == [10]


async def test_suspects_wait_for_new_batches_while_a_crashed_batch_is_present(
    suspect_delay: SuspectDelay,
) -> None:
    attempts = MemoryAttemptLog()
    poison, suspect, new = batch_of(b"crash"), batch_of(b"{}", b"{}"), batch_of(b"{}")
    attempts.add(poison, *initial_units(1), is_running=True)
    replica = BulkReplica(attempts=attempts, suspect_delay_s=SuspectDelay.DELAY_S)
    replica.start_batch(poison, is_redelivered=True)
    replica.start_batch(suspect, is_redelivered=True, offset=1)
    await suspect_delay.has_started.wait()
    replica.start_batch(new, offset=2)
    await suspect_delay.end_when(lambda: bool(replica.engine.executed))

    assert isinstance(await replica.wait_ended(), EngineDeadError)
    assert [len(run) for run in replica.engine.executed] == [1, 2, 1]


async def test_a_unit_with_two_crashes_waits_for_one_with_a_single_crash() -> None:
    attempts = MemoryAttemptLog()
    twice, once = batch_of(b"crash"), batch_of(b"{}")
    attempts.add(twice, AttemptUnit(0, 1, 2), life=2, is_running=False)
    attempts.add(once, AttemptUnit(0, 1, 1), is_running=True)
    replica = BulkReplica(attempts=attempts)
    replica.start_batch(twice, is_redelivered=True)
    replica.start_batch(once, is_redelivered=True, offset=1)

    await replica.wait_ended()
    assert replica.engine.executed == [[b"{}"], [b"crash"]]


async def test_an_aborted_batch_releases_its_locks(bulk: BulkReplica) -> None:
    bulk.engine.gate.clear()
    attempts = bulk.attempts
    dropped, other = batch_of(b"hold"), batch_of(b"{}")
    attempts.add(other, AttemptUnit(0, 1, 1), is_running=True)
    delivered = bulk.start_batch(dropped, is_redelivered=True)
    bulk.start_batch(other, is_redelivered=True, offset=1)
    await bulk.engine.holds.wait()
    (run,) = [run for run in bulk.execution.runs if run.delivered is delivered]
    run.abort(BatchAbortReason.LOST)

    assert await bulk.wait_ended() is None
    assert bulk.engine.executed == [[b"hold"], [b"{}"]]


async def test_a_completed_batch_does_not_run_again() -> None:
    batch, attempts = batch_of(b"{}", b"{}"), MemoryAttemptLog()
    attempts.add(batch, is_running=False)
    replica = BulkReplica(attempts=attempts)
    replica.start_batch(batch, is_redelivered=True)

    assert await replica.wait_ended() is None
    assert (replica.engine.executed, replica.log.outcomes, attempts.recorded) == ([], [], [])
    assert replica.consumer.offsets == [0]
    await replica.quarantine.delete_attempts(replica.consumer.is_committed)
    assert attempts.latest == {}


async def test_a_batch_completed_alongside_a_suspect_does_not_run_again(
    suspect_delay: SuspectDelay,
) -> None:
    poison, new = batch_of(b"crash"), batch_of(b"{}", b"{}")
    log, attempts = RecordingProducer(), MemoryAttemptLog()
    attempts.add(poison, *initial_units(1), is_running=True)
    replica = BulkReplica(log, attempts, suspect_delay_s=SuspectDelay.DELAY_S)
    assert not replica.attribution.has_suspects()
    replica.start_batch(poison, is_redelivered=True)
    await suspect_delay.has_started.wait()
    assert replica.attribution.has_suspects()
    replica.start_batch(new, offset=1)
    await suspect_delay.end_when(lambda: replica.consumer.offsets == [1])
    assert isinstance(await replica.wait_ended(), EngineDeadError)
    assert replica.consumer.offsets == [1]  # not committed: the offset before it is unfinished

    replica = BulkReplica(log, attempts)
    replica.start_batch(new, is_redelivered=True, offset=1)
    assert await replica.wait_ended() is None
    assert (replica.engine.executed, replica.attribution.has_suspects()) == ([], False)


@pytest.mark.parametrize("poison", [b"oom", b"memory"])
async def test_an_item_that_exceeds_the_memory_fails_alone_without_a_crash(poison: bytes) -> None:
    bodies = [b"{}"] * 100
    bodies[42] = poison
    replica = BulkReplica()
    replica.start_batch(batch_of(*bodies))

    assert await replica.wait_ended() is None
    outcomes = results(replica.log)
    assert {index for index, (end, _) in outcomes.items() if end is Outcome.FAILED} == {42}
    assert len(outcomes) == len(replica.log.outcomes) == 100
    (failed,) = (o for o in replica.log.outcomes if o.index == 42)
    assert (code_of(failed), failed.retryable) == ("item_out_of_memory", False)
    assert replica.attempts.recorded == []
    assert replica.consumer.offsets == [0]
    assert replica.capacity.in_flight == 0


async def test_a_batch_that_exceeds_the_memory_is_split() -> None:
    replica = BulkReplica(engine=FaultyEngine(items_max=30))
    replica.start_batch(batch_of(*[b"{}"] * 100))

    assert await replica.wait_ended() is None
    assert results(replica.log) == dict.fromkeys(range(100), (Outcome.SUCCEEDED, 1))
    assert [len(run) for run in replica.engine.executed] == [100] + [10] * 10


async def test_a_batch_that_exceeds_the_memory_is_split_while_the_store_is_unavailable() -> None:
    store = MemoryStore()
    store.is_away = True
    replica = BulkReplica(engine=FaultyEngine(items_max=2), objects=store)
    batch = batch_of(*[b"{}"] * 4)
    (part,) = batch.parts
    stored = Item(4, "c4", b"", 1, length=10)
    parts = [msgspec.structs.replace(part, items=[*part.items, stored])]
    replica.start_batch(msgspec.structs.replace(batch, parts=parts))

    assert await replica.wait_ended() is None
    assert results(replica.log) == dict.fromkeys(range(4), (Outcome.SUCCEEDED, 1))
    assert (replica.log.requeued_indexes, replica.consumer.offsets) == ([4], [0])


async def test_attempts_are_deleted_only_after_the_commit(bulk: BulkReplica) -> None:
    batches = [batch_of(b"{}"), batch_of(b"{}")]
    for offset, batch in enumerate(batches):
        bulk.start_batch(batch, is_redelivered=True, offset=offset)
    assert await bulk.wait_ended() is None

    await bulk.quarantine.delete_attempts(lambda record: record.offset == 0)
    assert list(bulk.attempts.latest) == [batches[1].batch_id]
    await bulk.quarantine.delete_attempts(lambda record: True)
    assert bulk.attempts.latest == {}


@pytest.mark.parametrize(("is_closed", "requeued"), [(True, []), (False, [*range(20)])])
async def test_redelivered_items_of_closed_jobs_are_dropped_and_of_unavailable_pools_requeued(
    bulk: BulkReplica, is_closed: bool, requeued: list[int]
) -> None:
    batch = batch_of(*[b"crash"] * 20)
    bulk.engine.is_unavailable = True
    if is_closed:
        bulk.controls.closed_ids.add(batch.parts[0].job.job_id)
    bulk.start_batch(batch, is_redelivered=True)
    assert await bulk.wait_ended() is None

    assert (bulk.log.outcomes, bulk.log.requeued_indexes) == ([], requeued)
    assert (bulk.consumer.offsets, bulk.capacity.in_flight) == ([0], 0)
    assert bool(bulk.engine.executed) is not is_closed
    assert all(attempt.units == [] for attempt in bulk.attempts.latest.values())


@pytest.mark.parametrize("is_lost_in_run", [False, True])
async def test_new_batches_run_while_a_suspect_waits_for_the_topic_of_attempts(
    is_lost_in_run: bool, bulk: BulkReplica
) -> None:
    suspect, new = batch_of(b"{}", b"hold"), batch_of(b"{}")
    bulk.attempts.add(suspect, AttemptUnit(0, 2, 1), is_running=True)
    bulk.engine.gate.clear()
    bulk.attempts.is_unavailable = not is_lost_in_run
    bulk.start_batch(suspect, is_redelivered=True)
    if is_lost_in_run:
        await asyncio.wait_for(bulk.engine.holds.wait(), 20)
        bulk.attempts.is_unavailable = True
    bulk.start_batch(new, offset=1)
    if is_lost_in_run:
        bulk.engine.gate.set()  # new work waits for the lock until the suspect has ended
    await until_true(lambda: 1 in bulk.consumer.offsets)
    assert is_lost_in_run or (bulk.consumer.offsets == [1] and len(bulk.engine.executed) == 1)

    bulk.engine.gate.set()
    bulk.attempts.is_unavailable = False
    assert await bulk.wait_ended() is None
    assert sorted(bulk.consumer.offsets) == [0, 1]
    assert len(bulk.log.outcomes) == 3
