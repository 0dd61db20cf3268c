"""Goal: a call that ends its process is answered after three ends; others that came again run."""

import asyncio
from typing import Any
from uuid import UUID

import msgspec
import pytest

from core.errors import EngineDeadError
from core.outcomes import Outcome
from gpu_consumers.quarantine.crash_attribution import Trials
from tests.unit.gpu_consumers.attempts import Attempts
from tests.unit.gpu_consumers.online_bench import PLACE, OnlineBench, call
from topics.records.records import AttemptUnit, BatchAttempt

DURABLE = call(1, stream=False, durable=True)


async def life(attempts: Attempts, *, dies: bool) -> OnlineBench:
    """Deliver a call a second time, to a replica whose engine dies of it or answers."""
    bench = OnlineBench(attempts)

    bench.engine.dead = dies
    bench.engine.go.set()
    bench.begin(DURABLE, may_have_run=True)
    if dies:
        with pytest.raises(EngineDeadError):
            await bench.end()
    else:
        await bench.end()
    return bench


async def test_a_call_that_ends_its_process_is_charged_at_last() -> None:
    attempts = Attempts()
    for crashes in (1, 2):
        await life(attempts, dies=True)
        assert attempts.known[UUID(int=1)].units[0].crashes == crashes
    bench = await life(attempts, dies=False)  # it does not run

    (outcome,) = bench.log.outcomes
    assert outcome.outcome is Outcome.FAILED
    assert not outcome.retryable
    (end,) = [reply.end for reply in bench.log.replies if reply.end is not None]
    assert msgspec.json.decode(end.body)["error"]["code"] == "item_crashes_engine"
    assert attempts.known == {}
    assert bench.finished == 1


async def test_a_charged_call_is_forgotten_when_its_end_is_on_the_log() -> None:
    attempts = Attempts()
    for _ in range(2):
        await life(attempts, dies=True)
    bench = OnlineBench(attempts)
    known: list[bool] = []
    send = bench.log.send

    def noting(*args: Any, **fields: Any) -> None:
        known.append(UUID(int=1) in attempts.known)
        send(*args, **fields)

    bench.log.send = noting  # type: ignore[method-assign]
    bench.begin(DURABLE, may_have_run=True)
    await bench.end()
    assert len(bench.log.outcomes) == 1
    assert (all(known), attempts.known) == (True, {})


async def test_a_call_that_came_again_by_chance_is_run_and_forgotten() -> None:
    attempts = Attempts()
    await life(attempts, dies=True)
    bench = await life(attempts, dies=False)

    assert bench.log.statuses() == [200]
    assert attempts.known == {}


async def test_a_pool_that_is_away_charges_nobody() -> None:
    bench = OnlineBench()

    bench.engine.unavailable = True
    bench.begin(DURABLE, may_have_run=True)
    await bench.end()
    assert len(bench.log.put_back) == 1
    assert bench.attempts.known == {}


async def test_a_first_delivery_is_told_of_nowhere() -> None:
    bench = OnlineBench()
    bench.engine.go.set()
    bench.begin(DURABLE)
    await bench.end()
    assert bench.attempts.said == []


async def test_a_call_that_is_cut_while_its_attempt_is_told_of_leaves_nothing_behind() -> None:
    bench = OnlineBench()
    told, said = asyncio.Event(), bench.attempts.say

    async def say(attempt: BatchAttempt) -> None:
        await said(attempt)
        told.set()
        await asyncio.Event().wait()

    bench.attempts.say = say  # type: ignore[method-assign]
    bench.begin(DURABLE, may_have_run=True)
    await asyncio.wait_for(told.wait(), 5)
    bench.execution.hand_back()
    await bench.end()
    assert len(bench.log.put_back) == 1
    assert bench.attempts.known == {}


async def owner(attempts: Attempts) -> OnlineBench:
    """Return a replica that runs the call, which came again."""
    bench = OnlineBench(attempts)
    bench.begin(DURABLE, may_have_run=True)
    await bench.settle()
    assert bench.engine.running == 1
    return bench


async def test_a_partition_that_moves_charges_nobody() -> None:
    attempts = Attempts()
    owners = []
    for number in (1, 2, 3, 4):
        owners.append(await owner(attempts))
        await owners[-1].lane.let_go({PLACE}, lost=False)
        told = BatchAttempt(UUID(int=1), number, [AttemptUnit(0, 1, 1)], is_running=False)
        assert attempts.known == {UUID(int=1): told}
    await life(attempts, dies=False)
    assert attempts.known == {}
    for bench in owners:
        bench.engine.go.set()
        await bench.end()


async def test_another_partition_that_moves_changes_nothing() -> None:
    attempts = Attempts()
    bench = await owner(attempts)
    await bench.lane.let_go({(PLACE[0], 1)}, lost=False)
    assert attempts.known[UUID(int=1)].is_running
    bench.engine.go.set()
    await bench.end()
    assert attempts.known == {}


@pytest.mark.parametrize("lost", [False, True])
async def test_who_ran_a_call_before_its_partition_moved_hides_no_crash(lost: bool) -> None:
    attempts = Attempts()
    before = await owner(attempts)
    await before.lane.let_go({PLACE}, lost=lost)
    await life(attempts, dies=True)
    told = attempts.known[UUID(int=1)]
    before.engine.go.set()
    await before.end()

    assert before.log.statuses() == [200]
    assert told.is_running
    assert attempts.known == {UUID(int=1): told}


async def test_a_call_that_begins_after_its_partition_moved_is_told_of_by_its_owner() -> None:
    bench = OnlineBench()
    is_read, read = asyncio.Event(), bench.attempts.before

    async def before(batch_id: UUID, generation: int) -> BatchAttempt | None:
        await is_read.wait()
        return await read(batch_id, generation)

    bench.attempts.before = before  # type: ignore[method-assign]
    bench.begin(DURABLE, may_have_run=True)
    await bench.settle()
    await bench.lane.let_go({PLACE}, lost=False)
    is_read.set()
    bench.engine.go.set()
    await bench.end()
    assert (bench.log.statuses(), bench.attempts.said) == ([200], [])


async def test_two_that_ended_twice_run_one_after_the_other() -> None:
    attempts = Attempts()
    for number in (1, 2):
        bench = OnlineBench(attempts)
        bench.engine.dead = True
        bench.begin(call(number, stream=False, durable=True), may_have_run=True)
        with pytest.raises(EngineDeadError):
            await bench.end()
    bench = OnlineBench(attempts)
    bench.begin(*(call(number, stream=False, durable=True) for number in (1, 2)), may_have_run=True)
    await bench.settle()
    assert bench.engine.running == 1
    bench.engine.go.set()
    await bench.end()
    assert bench.log.statuses() == [200, 200]


async def test_a_call_that_died_beside_others_is_not_charged_and_then_runs_alone() -> None:
    attempts = Attempts()
    await life(attempts, dies=True)
    before = attempts.known[UUID(int=1)]
    trials = Trials()
    bench = OnlineBench(attempts, trials=trials)
    bench.begin(DURABLE, may_have_run=True)
    await bench.settle()
    assert trials.in_danger()
    assert not attempts.known[before.batch_id].in_company
    bench.begin(call(2, stream=False))  # or a batch
    await bench.settle()
    died = attempts.known[before.batch_id]
    assert (bench.engine.running, died.in_company) == (2, True)
    bench.engine.go.set()
    await bench.end()
    assert not trials.in_danger()

    attempts.known[before.batch_id] = died
    bench = OnlineBench(attempts, trials=trials)
    async with trials.beside():
        bench.begin(DURABLE, may_have_run=True)
        await bench.settle()
        assert bench.engine.running == 0
    await bench.settle()
    told = attempts.known[before.batch_id]
    assert (bench.engine.running, told.units[0].crashes, told.in_company) == (1, 3, False)
    bench.engine.go.set()
    await bench.end()
    assert (bench.log.statuses(), attempts.known) == ([200], {})


async def test_a_call_that_is_kept_out_is_not_told_of_as_running() -> None:
    trials = Trials()
    bench = OnlineBench(trials=trials)
    await trials.take_turn(empties=True)  # another one that may end the process
    bench.begin(DURABLE, may_have_run=True)
    await bench.settle()
    assert (bench.attempts.said, bench.engine.running) == ([], 0)
    trials.end_turn()
    await bench.settle()
    assert bench.attempts.known[UUID(int=1)].is_running
    assert bench.engine.running == 1
    bench.engine.go.set()
    await bench.end()
    assert (bench.log.statuses(), bench.attempts.known) == ([200], {})


async def test_a_call_that_is_cut_while_it_is_kept_out_leaves_nothing_behind() -> None:
    trials = Trials()
    bench = OnlineBench(trials=trials)
    await trials.take_turn(empties=True)
    bench.begin(DURABLE, may_have_run=True)
    await bench.settle()
    bench.execution.hand_back()
    await bench.end()
    assert len(bench.log.put_back) == 1
    assert (bench.attempts.said, bench.attempts.known) == ([], {})
    trials.end_turn()
