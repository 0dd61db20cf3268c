"""Goal: a crash is charged only to what ran alone in the engine, and the engine reopens soon."""

import asyncio
import contextlib

import pytest

from core.errors import SettingsError
from core.outcomes import Outcome
from gpu_consumers.quarantine.crash_attribution import CrashAttribution
from gpu_consumers.settings import ReplicaSettings
from tests.unit.gpu_consumers.fakes import MemoryAttemptLog, RecordingProducer, run_loop
from tests.unit.gpu_consumers.replicas import BulkReplica, batch_of
from topics.records.attempts import AttemptUnit
from topics.records.records import Batch


def replica_with_suspect(crashes: int, attribution: CrashAttribution) -> tuple[BulkReplica, Batch]:
    """Return a replica that runs a single item with so many crashes, held by its engine."""
    batch, attempts = batch_of(b"hold"), MemoryAttemptLog()
    attempts.add(batch, AttemptUnit(0, 1, crashes), is_running=False)
    replica = BulkReplica(attempts=attempts, attribution=attribution)
    replica.engine.gate.clear()
    replica.start_batch(batch, is_redelivered=True)
    return replica, batch


async def is_charged_after_crash(replica: BulkReplica, batch: Batch) -> bool:
    """Return whether the next owner charges the item without running it."""
    replica.tasks.cancel_all()
    after = BulkReplica(attempts=replica.attempts)
    after.start_batch(batch, is_redelivered=True)
    assert await after.wait_ended() is None
    return after.engine.executed == []


@pytest.mark.parametrize("other_call", ["none", "before", "after"])
async def test_an_item_is_charged_only_if_no_call_ran_alongside(other_call: str) -> None:
    attribution = CrashAttribution()
    async with contextlib.AsyncExitStack() as calls:
        if other_call == "before":
            await calls.enter_async_context(attribution.run_alongside())
        replica, batch = replica_with_suspect(2, attribution)
        await replica.engine.holds.wait()
        if other_call == "after":
            await calls.enter_async_context(attribution.run_alongside())
        # Recorded when the call is admitted, not later.
        assert replica.attempts.latest[batch.batch_id].in_company is (other_call != "none")
        is_charged = await is_charged_after_crash(replica, batch)
    assert is_charged is (other_call == "none")


async def run_call(attribution: CrashAttribution) -> None:
    async with attribution.run_alongside():
        pass


async def test_a_suspect_that_crashed_alongside_others_has_the_engine_alone() -> None:
    attribution = CrashAttribution(exclusive_s_max=60)
    async with attribution.run_alongside():
        replica, batch = replica_with_suspect(3, attribution)
        await run_loop(100)
        call = asyncio.create_task(run_call(attribution))
        await run_loop(100)
        assert (replica.engine.executed, call.done()) == ([], False)
    await replica.engine.holds.wait()
    assert not call.done()
    assert not replica.attempts.latest[batch.batch_id].in_company
    replica.engine.gate.set()
    assert await replica.wait_ended() is None
    await asyncio.wait_for(call, 20)


async def test_the_engine_reopens_before_a_long_suspect_ends() -> None:
    attribution = CrashAttribution(exclusive_s_max=0.05)
    replica, batch = replica_with_suspect(3, attribution)
    await replica.engine.holds.wait()
    await asyncio.wait_for(run_call(attribution), 20)
    assert replica.attempts.latest[batch.batch_id].in_company
    replica.engine.gate.set()
    assert await replica.wait_ended() is None


async def test_a_suspect_that_never_runs_alone_fails_after_six_crashes() -> None:
    attribution = CrashAttribution(exclusive_s_max=0)
    log, attempts, batch = RecordingProducer(), MemoryAttemptLog(), batch_of(b"crash")
    crashes = 0
    async with attribution.run_alongside():
        while True:
            replica = BulkReplica(log, attempts, attribution=attribution)
            replica.start_batch(batch, is_redelivered=crashes > 0)
            if await replica.wait_ended() is None:
                break
            crashes += 1
    assert crashes == 6
    assert [outcome.outcome for outcome in log.outcomes] == [Outcome.FAILED]


async def test_an_abort_ends_the_wait_for_a_drained_engine() -> None:
    attribution = CrashAttribution()
    async with attribution.run_alongside():
        replica, _ = replica_with_suspect(3, attribution)
        await run_loop(100)
        replica.worker.requeue_all()
        assert await replica.wait_ended() is None
        async with asyncio.timeout(20):
            await run_call(attribution)  # the engine is open again
    assert replica.log.requeued_indexes == [0]


@pytest.mark.parametrize("crashes_max", ["1", "2"])
def test_crashes_max_is_at_least_three(crashes_max: str) -> None:
    env = {"MILLRACE_GPU_POOL": "p", "MILLRACE_GPU_CRASHES_MAX": crashes_max}
    with pytest.raises(SettingsError, match="CRASHES_MAX"):
        ReplicaSettings.from_env(env)
