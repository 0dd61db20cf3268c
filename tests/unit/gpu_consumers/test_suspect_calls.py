"""Goal: a poison call fails after three crashes; other redelivered calls run."""

import asyncio
from typing import Any
from uuid import UUID

import msgspec
import pytest

from core.errors import EngineDeadError
from core.outcomes import Outcome
from gpu_consumers.quarantine.crash_attribution import CrashAttribution
from gpu_consumers.quarantine.host_health import HostHealth
from gpu_consumers.quarantine.host_history import HostVerdict
from tests.support.until import until_true
from tests.unit.gpu_consumers.fakes import MemoryAttemptLog, run_loop
from tests.unit.gpu_consumers.replicas import PARTITION, OnlineReplica, call_chunk
from topics.records.attempts import AttemptUnit, BatchAttempt

DURABLE = call_chunk(1, stream=False, durable=True)


async def run_redelivered(attempts: MemoryAttemptLog, *, crashes: bool) -> OnlineReplica:
    """Deliver the call again, to a replica whose engine crashes or answers."""
    replica = OnlineReplica(attempts)

    replica.engine.is_dead = crashes
    replica.engine.gate.set()
    replica.start_batch(DURABLE, is_redelivered=True)
    if crashes:
        with pytest.raises(EngineDeadError):
            await replica.wait_ended()
    else:
        await replica.wait_ended()
    return replica


async def test_a_call_is_charged_after_three_crashes() -> None:
    """Its attempt is deleted after its end is acknowledged."""
    attempts = MemoryAttemptLog()
    for crash_count in (1, 2):
        await run_redelivered(attempts, crashes=True)
        assert attempts.latest[UUID(int=1)].units[0].crashes == crash_count
    replica = OnlineReplica(attempts)
    known: list[bool] = []
    send = replica.log.send

    def noting(*args: Any, **fields: Any) -> None:
        known.append(UUID(int=1) in attempts.latest)
        send(*args, **fields)

    replica.log.send = noting  # type: ignore[method-assign]
    replica.start_batch(DURABLE, is_redelivered=True)
    await replica.wait_ended()

    (outcome,) = replica.log.outcomes
    assert (outcome.outcome, outcome.retryable) == (Outcome.FAILED, False)
    (end,) = replica.log.ends
    assert msgspec.json.decode(end.body)["error"]["code"] == "item_crashes_engine"
    assert (all(known), attempts.latest, replica.finished_count) == (True, {}, 1)


async def test_a_call_is_charged_only_after_its_host_has_proven_itself() -> None:
    attempts = MemoryAttemptLog()
    for _ in range(2):
        await run_redelivered(attempts, crashes=True)
    host = HostHealth(host_id="h", verdict=HostVerdict(proof_s=0.05))
    replica = OnlineReplica(attempts, attribution=CrashAttribution(host=host))
    host.start_serving()
    await replica.hold(DURABLE, is_redelivered=True)
    assert (replica.log.ends, replica.engine.served) == ([], 0)

    await replica.wait_ended()
    assert [outcome.outcome for outcome in replica.log.outcomes] == [Outcome.FAILED]
    assert replica.engine.served == 0


async def test_an_unavailable_pool_deletes_the_attempt(replica: OnlineReplica) -> None:
    replica.engine.is_unavailable = True
    replica.start_batch(DURABLE, is_redelivered=True)
    await replica.wait_ended()
    assert len(replica.log.requeued) == 1
    assert replica.attempts.latest == {}


async def test_a_call_aborted_while_its_attempt_is_recorded_deletes_the_attempt(
    replica: OnlineReplica,
) -> None:
    recorded, said = asyncio.Event(), replica.attempts.record_attempt

    async def say(attempt: BatchAttempt) -> None:
        await said(attempt)
        recorded.set()
        await asyncio.Event().wait()

    replica.attempts.record_attempt = say  # type: ignore[method-assign]
    replica.start_batch(DURABLE, is_redelivered=True)
    await asyncio.wait_for(recorded.wait(), 20)
    replica.worker.requeue_all()
    await replica.wait_ended()
    assert len(replica.log.requeued) == 1
    assert replica.attempts.latest == {}


async def start_redelivered(attempts: MemoryAttemptLog) -> OnlineReplica:
    """Return a replica that runs the redelivered call."""
    replica = OnlineReplica(attempts)
    await replica.hold(DURABLE, is_redelivered=True)
    assert replica.engine.running == 1
    return replica


async def test_a_revoked_partition_charges_no_call() -> None:
    attempts = MemoryAttemptLog()
    owners = []
    for number in (1, 2, 3, 4):
        owners.append(await start_redelivered(attempts))
        await owners[-1].worker.on_revoke({PARTITION}, lost=False)
        recorded = BatchAttempt(UUID(int=1), number, [AttemptUnit(0, 1, 1)], is_running=False)
        assert attempts.latest == {UUID(int=1): owners[-1].attribution.host.stamp(recorded)}
    await run_redelivered(attempts, crashes=False)
    assert attempts.latest == {}
    for replica in owners:
        replica.engine.gate.set()
        await replica.wait_ended()


async def test_another_revoked_partition_changes_no_attempt() -> None:
    attempts = MemoryAttemptLog()
    replica = await start_redelivered(attempts)
    await replica.worker.on_revoke({(PARTITION[0], 1)}, lost=False)
    assert attempts.latest[UUID(int=1)].is_running
    replica.engine.gate.set()
    await replica.wait_ended()
    assert attempts.latest == {}


@pytest.mark.parametrize("lost", [False, True])
async def test_a_previous_owner_does_not_delete_the_attempt_of_the_next_owner(lost: bool) -> None:
    attempts = MemoryAttemptLog()
    before = await start_redelivered(attempts)
    await before.worker.on_revoke({PARTITION}, lost=lost)
    await run_redelivered(attempts, crashes=True)
    recorded = attempts.latest[UUID(int=1)]
    before.engine.gate.set()
    await before.wait_ended()

    assert before.log.statuses == [200]
    assert recorded.is_running
    assert attempts.latest == {UUID(int=1): recorded}


async def test_a_call_that_starts_after_its_partition_moved_records_no_attempt(
    replica: OnlineReplica,
) -> None:
    is_read, read = asyncio.Event(), replica.attempts.read_attempt

    async def before(batch_id: UUID, generation: int) -> BatchAttempt | None:
        await is_read.wait()
        return await read(batch_id, generation)

    replica.attempts.read_attempt = before  # type: ignore[method-assign]
    await replica.hold(DURABLE, is_redelivered=True)
    await replica.worker.on_revoke({PARTITION}, lost=False)
    is_read.set()
    replica.engine.gate.set()
    await replica.wait_ended()
    assert (replica.log.statuses, replica.attempts.recorded) == ([200], [])


async def test_calls_with_two_crashes_run_one_after_the_other() -> None:
    attempts = MemoryAttemptLog()
    for number in (1, 2):
        replica = OnlineReplica(attempts)
        replica.engine.is_dead = True
        replica.start_batch(call_chunk(number, stream=False, durable=True), is_redelivered=True)
        with pytest.raises(EngineDeadError):
            await replica.wait_ended()
    replica = OnlineReplica(attempts)
    replica.start_batch(
        *(call_chunk(number, stream=False, durable=True) for number in (1, 2)), is_redelivered=True
    )
    await run_loop()
    assert replica.engine.running == 1
    replica.engine.gate.set()
    await replica.wait_ended()
    assert replica.log.statuses == [200, 200]


async def test_a_call_that_crashed_alongside_others_is_not_charged_and_runs_alone() -> None:
    attempts = MemoryAttemptLog()
    await run_redelivered(attempts, crashes=True)
    before = attempts.latest[UUID(int=1)]
    attribution = CrashAttribution()
    replica = OnlineReplica(attempts, attribution=attribution)
    await replica.hold(DURABLE, is_redelivered=True)
    assert attribution.has_suspects()
    assert not attempts.latest[before.batch_id].in_company
    await replica.hold(call_chunk(2, stream=False))  # whose first delivery records no attempt
    assert attempts.latest.keys() == {UUID(int=1)}
    died = attempts.latest[before.batch_id]
    assert (replica.engine.running, died.in_company) == (2, True)
    replica.engine.gate.set()
    await replica.wait_ended()
    assert not attribution.has_suspects()

    attempts.latest[before.batch_id] = died
    replica = OnlineReplica(attempts, attribution=attribution)
    async with attribution.run_alongside():
        replica.start_batch(DURABLE, is_redelivered=True)
        await run_loop()
        assert replica.engine.running == 0
    await run_loop()
    recorded = attempts.latest[before.batch_id]
    assert (replica.engine.running, recorded.units[0].crashes, recorded.in_company) == (1, 3, False)
    replica.engine.gate.set()
    await replica.wait_ended()
    assert (replica.log.statuses, attempts.latest) == ([200], {})


@pytest.mark.parametrize("is_aborted", [False, True])
async def test_a_call_that_waits_for_admission_is_not_recorded_as_running(is_aborted: bool) -> None:
    attribution = CrashAttribution()
    replica = OnlineReplica(attribution=attribution)
    await attribution.acquire_suspect_slot(drains_engine=True)  # by another suspect
    await replica.hold(DURABLE, is_redelivered=True)
    if is_aborted:
        replica.worker.requeue_all()
        await replica.wait_ended()
    assert (replica.attempts.recorded, replica.engine.running) == ([], 0)
    attribution.release_suspect_slot()
    await run_loop()
    assert replica.engine.running == (not is_aborted)
    assert [attempt.is_running for attempt in replica.attempts.recorded] == [True] * (
        not is_aborted
    )
    replica.engine.gate.set()
    await replica.wait_ended()
    assert replica.log.statuses == [200] * (not is_aborted)
    assert (len(replica.log.requeued), replica.attempts.latest) == (is_aborted, {})


async def test_other_calls_run_while_a_suspect_waits_for_the_topic_of_attempts() -> None:
    attempts = MemoryAttemptLog()
    for _ in range(2):
        await run_redelivered(attempts, crashes=True)
    unit = msgspec.structs.replace(attempts.latest[UUID(int=1)].units[0], crashes=2)
    attempts.latest[UUID(int=1)] = BatchAttempt(UUID(int=1), 2, [unit], is_running=False)
    replica = OnlineReplica(attempts)
    attempts.is_unavailable = True
    await replica.hold(DURABLE, is_redelivered=True)
    await replica.hold(call_chunk(2))
    assert replica.engine.running == 1

    replica.engine.gate.set()
    await until_true(lambda: replica.finished_count == 1)
    attempts.is_unavailable = False
    await replica.wait_ended()
    assert (replica.finished_count, attempts.latest) == (2, {})
    assert {outcome.outcome for outcome in replica.log.outcomes} == {Outcome.SUCCEEDED}
