"""Goal: a death charges only what was alone in the engine, and nobody is kept out for long."""

import asyncio
import contextlib

import pytest

from core.outcomes import Outcome
from gpu_consumers.quarantine.crash_attribution import Trials
from tests.unit.gpu_consumers.attempts import Attempts
from tests.unit.gpu_consumers.bulk_bench import Life, Log, TouchyEngine, batch_of, delivery
from topics.records.records import Attempt, Batch, Unit


async def on_trial(crashes: int, trials: Trials, body: bytes = b"hold") -> tuple[Life, Batch]:
    """Return a replica that runs a single item, alone in its lane, that ended so many others."""
    batch, attempts, engine = batch_of(body), Attempts(), TouchyEngine()
    attempts.known[batch.batch_id] = Attempt(batch.batch_id, 1, [Unit(0, 1, crashes)], False)
    engine.hold.clear()
    life = Life(Log(), attempts, engine, trials=trials)
    life.lane.begin(delivery(batch, old=True))
    return life, batch


async def death_charges(life: Life, batch: Batch) -> bool:
    """Whether an owner after the death of `life` charges the item without running it."""
    after = Life(Log(), life.attempts, TouchyEngine())
    life.tasks.cancel_all()
    after.lane.begin(delivery(batch, old=True))
    assert await after.end() is None
    return after.engine.runs == []


@pytest.mark.parametrize("company", ["none", "before", "after"])
async def test_an_item_is_charged_only_if_no_call_ran_beside_it(company: str) -> None:
    trials, said = Trials(), []
    async with contextlib.AsyncExitStack() as calls:
        if company == "before":
            await calls.enter_async_context(trials.beside())
        life, batch = await on_trial(2, trials)
        await life.engine.holds.wait()
        if company == "after":
            await calls.enter_async_context(trials.beside())
        said.append(life.attempts.known[batch.batch_id])  # as it comes in
        assert said[0].in_company is (company != "none")
        charges = await death_charges(life, batch)
    assert charges is (company == "none")


async def come_in(trials: Trials) -> None:
    async with trials.beside():
        pass


async def test_one_that_died_in_company_has_the_engine_for_itself() -> None:
    trials = Trials(hold_s=60)
    async with trials.beside():
        life, batch = await on_trial(3, trials)
        await asyncio.sleep(0.01)
        late = asyncio.create_task(come_in(trials))
        await asyncio.sleep(0.01)
        assert (life.engine.runs, late.done()) == ([], False)
    await life.engine.holds.wait()
    assert not late.done()
    assert not life.attempts.known[batch.batch_id].in_company
    life.engine.hold.set()
    assert await life.end() is None
    await asyncio.wait_for(late, 5)


async def test_nobody_is_kept_out_until_an_item_ends() -> None:
    trials = Trials(hold_s=0.05)
    life, batch = await on_trial(3, trials)
    await life.engine.holds.wait()
    await asyncio.wait_for(come_in(trials), 5)
    assert life.attempts.known[batch.batch_id].in_company
    life.engine.hold.set()
    assert await life.end() is None


async def test_one_that_never_has_the_engine_for_itself_comes_to_an_end() -> None:
    trials = Trials(hold_s=0)
    deaths, log, attempts, batch = 0, Log(), Attempts(), batch_of(b"crash")
    async with trials.beside():
        while True:
            life = Life(log, attempts, TouchyEngine(), trials=trials)
            life.lane.begin(delivery(batch, old=deaths > 0))
            if await life.end() is None:
                break
            deaths += 1
    assert deaths == 6
    assert [outcome.outcome for outcome in log.outcomes] == [Outcome.FAILED]


async def test_a_cut_ends_the_wait_for_an_empty_engine() -> None:
    trials = Trials()
    async with trials.beside():
        life, _ = await on_trial(3, trials)
        await asyncio.sleep(0.01)
        life.lane.hand_back()
        assert await life.end() is None
        async with asyncio.timeout(5), trials.beside():  # nobody is kept out any more
            pass
    assert life.log.put_back == [0]
