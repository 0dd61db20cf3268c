"""Goal: what ends a process or fits no memory fails alone, and a first delivery pays nothing."""

import asyncio
import itertools

import msgspec
import pytest

from core.errors import EngineDeadError, SchemaTooNewError
from core.outcomes import Outcome
from gpu_consumers.inflight.batch_run import Cut
from gpu_consumers.inflight.delivered_batch import Delivery
from gpu_consumers.quarantine.narrowing import PARTS, first_units
from tests.unit.gpu_consumers.attempts import Attempts
from tests.unit.gpu_consumers.bulk_bench import (
    Life,
    Log,
    TouchyEngine,
    batch_of,
    covered,
    delivery,
)
from tests.unit.gpu_consumers.rests import Rest
from topics.records.records import Attempt, Batch, ItemOutcome, Unit


def code_of(outcome: ItemOutcome) -> str:
    code: str = msgspec.json.decode(outcome.body)["error"]["code"]
    return code


def results(log: Log) -> dict[int, tuple[Outcome, int]]:
    """Return how each item ended first, and in which attempt."""
    found: dict[int, tuple[Outcome, int]] = {}
    for outcome in log.outcomes:
        found.setdefault(outcome.index, (outcome.outcome, outcome.attempt))
    return found


async def lives_of(batch: Batch, log: Log, attempts: Attempts) -> int:
    """Deliver a batch to one replica after the other until it is finished; count the deaths."""
    for deaths in itertools.count():
        life = Life(log, attempts, TouchyEngine())
        life.lane.begin(delivery(batch, old=deaths > 0))
        failure = await life.end()
        if failure is None:
            assert life.consumer.offsets == [0]
            return deaths
        assert isinstance(failure, EngineDeadError)
        assert life.consumer.offsets == []
    raise AssertionError


async def test_a_first_delivery_writes_no_attempt_and_runs_with_others() -> None:
    life = Life(Log(), Attempts(), TouchyEngine())
    life.lane.begin(delivery(batch_of(b"{}", b"{}")))
    life.lane.begin(delivery(batch_of(b"{}", b"{}"), offset=1))

    assert await life.end() is None
    assert life.attempts.said == []
    assert life.engine.together_max == 2
    assert sorted(life.consumer.offsets) == [0, 1]


async def test_a_batch_that_cannot_start_ends_the_process() -> None:
    life = Life(Log(), Attempts(), TouchyEngine())
    life.closed.ended = SchemaTooNewError()
    life.tasks.call_from_thread(life.lane.begin, delivery(batch_of(b"{}")))

    with pytest.raises(SchemaTooNewError):
        await asyncio.wait_for(life.tasks.failed, 5)
    assert life.consumer.offsets == []


async def test_poison_fails_alone_after_three_deaths_each() -> None:
    bodies = [b"{}"] * 100
    for place in (17, 18, 55):
        bodies[place] = b"crash"
    log, attempts = Log(), Attempts()
    deaths = await lives_of(batch_of(*bodies), log, attempts)

    ends = results(log)
    assert {index for index, (end, _) in ends.items() if end is Outcome.FAILED} == {17, 18, 55}
    assert {index for index, (end, _) in ends.items() if end is Outcome.SUCCEEDED} == set(
        range(100)
    ) - {17, 18, 55}
    assert deaths == 1 + 2 + 3  # in company, two tenths, each alone
    failed = [o for o in log.outcomes if o.outcome is Outcome.FAILED]
    assert {(code_of(o), o.retryable) for o in failed} == {("item_crashes_engine", False)}
    assert {o.attempt for o in failed} == {3}
    assert [attempt.units for attempt in attempts.known.values()] == [[]]
    assert len(log.outcomes) == 100  # what ended before a death is not run again


async def test_an_item_in_a_batch_of_its_own_is_tried_three_times() -> None:
    log = Log()
    assert await lives_of(batch_of(b"crash"), log, Attempts()) == 3
    assert results(log) == {0: (Outcome.FAILED, 3)}


async def test_what_may_have_run_runs_in_tenths_one_after_the_other() -> None:
    life = Life(Log(), Attempts(), TouchyEngine())
    for offset in range(2):
        life.lane.begin(delivery(batch_of(*[b"{}"] * 100), old=True, offset=offset))
    life.lane.begin(delivery(batch_of(b"{}"), offset=2))

    assert await life.end() is None
    assert life.engine.together_max == 1
    # What is new does not wait while the log of attempts is asked.
    assert [len(run) for run in life.engine.runs] == [1] + [10] * 20
    for batch_id in {attempt.batch_id for attempt in life.attempts.said}:
        its = [attempt for attempt in life.attempts.said if attempt.batch_id == batch_id]
        runs = [covered(attempt.units) for attempt in its if attempt.is_running]
        rests = [covered(attempt.units) for attempt in its if not attempt.is_running]
        assert (runs, rests) == ([*range(100, 0, -10)], [*range(90, -1, -10)])
    await life.isolation.forget(life.consumer.is_committed)
    assert life.attempts.known == {}
    assert len(life.log.outcomes) == 201


async def test_what_ended_its_process_lets_all_else_go_first() -> None:
    poison, beside, new = batch_of(b"crash"), batch_of(b"{}", b"{}"), batch_of(b"{}", b"{}", b"{}")
    log, attempts = Log(), Attempts()
    attempts.known[poison.batch_id] = Attempt(poison.batch_id, 1, first_units(1), True)
    life = Life(log, attempts, TouchyEngine(), rest_s=0.05)
    life.lane.begin(delivery(poison, old=True))
    life.lane.begin(delivery(beside, old=True, offset=1))
    life.lane.begin(delivery(new, offset=2))

    assert isinstance(await life.end(), EngineDeadError)
    assert sorted(len(run) for run in life.engine.runs[:2]) == [2, 3]
    assert life.engine.runs[2:] == [[b"crash"]]


async def test_the_innocent_of_all_batches_go_before_the_poison_of_any() -> None:
    log, attempts = Log(), Attempts()
    batches = [batch_of(b"crash", b"{}", b"{}"), batch_of(b"crash", b"{}", b"{}", b"{}")]
    for batch in batches:
        units = [Unit(0, 1, 1), Unit(1, len(batch.parts[0].items) - 1, 1)]
        attempts.known[batch.batch_id] = Attempt(batch.batch_id, 1, units, True)
    life = Life(log, attempts, TouchyEngine(), rest_s=0.02)
    for offset, batch in enumerate(batches):
        life.lane.begin(delivery(batch, old=True, offset=offset))

    assert isinstance(await life.end(), EngineDeadError)
    assert sorted(life.engine.runs[:2]) == [[b"{}"] * 2, [b"{}"] * 3]
    assert life.engine.runs[2:] == [[b"crash"]]


async def test_a_death_between_two_units_charges_neither() -> None:
    log, attempts = Log(), Attempts()
    batch, poison = batch_of(b"hold", *[b"{}"] * 19), batch_of(b"crash")
    life = Life(log, attempts, TouchyEngine())
    life.engine.hold.clear()
    life.lane.begin(delivery(batch, old=True))
    await life.engine.holds.wait()
    life.lane.begin(delivery(poison, offset=1))
    await asyncio.sleep(0)
    life.engine.hold.set()
    assert isinstance(await life.end(), EngineDeadError)
    assert attempts.known[batch.batch_id] == Attempt(batch.batch_id, 1, [Unit(10, 10, 1)], False)

    after = Life(log, attempts, TouchyEngine())
    after.lane.begin(delivery(batch, old=True))
    assert await after.end() is None
    assert [len(run) for run in after.engine.runs] == [10]


async def test_what_is_innocent_lets_the_new_go_too_where_a_process_may_end(rest: Rest) -> None:
    attempts = Attempts()
    poison, beside, new = batch_of(b"crash"), batch_of(b"{}", b"{}"), batch_of(b"{}")
    attempts.known[poison.batch_id] = Attempt(poison.batch_id, 1, first_units(1), True)
    life = Life(Log(), attempts, TouchyEngine(), rest_s=Rest.LASTS_S)
    life.lane.begin(delivery(poison, old=True))
    life.lane.begin(delivery(beside, old=True, offset=1))
    await rest.begun.wait()
    life.lane.begin(delivery(new, offset=2))
    await rest.end_when(lambda: bool(life.engine.runs))

    assert isinstance(await life.end(), EngineDeadError)
    assert [len(run) for run in life.engine.runs] == [1, 2, 1]


async def test_a_second_death_waits_for_what_died_once() -> None:
    attempts = Attempts()
    twice, once = batch_of(b"crash"), batch_of(b"{}")
    attempts.known[twice.batch_id] = Attempt(twice.batch_id, 2, [Unit(0, 1, 2)], False)
    attempts.known[once.batch_id] = Attempt(once.batch_id, 1, [Unit(0, 1, 1)], True)
    life = Life(Log(), attempts, TouchyEngine())
    life.lane.begin(delivery(twice, old=True))
    life.lane.begin(delivery(once, old=True, offset=1))

    await life.end()
    assert life.engine.runs == [[b"{}"], [b"crash"]]


async def test_a_batch_that_is_dropped_holds_up_nobody() -> None:
    life = Life(Log(), Attempts(), TouchyEngine())
    life.engine.hold.clear()
    attempts = life.attempts
    dropped, other = batch_of(b"hold"), batch_of(b"{}")
    attempts.known[other.batch_id] = Attempt(other.batch_id, 1, [Unit(0, 1, 1)], True)
    record = delivery(dropped, old=True)
    life.lane.begin(record)
    life.lane.begin(delivery(other, old=True, offset=1))
    await life.engine.holds.wait()
    (run,) = [run for run in life.execution.runs if run.delivery is record]
    run.stop(Cut.DROP)

    assert await life.end() is None
    assert life.engine.runs == [[b"hold"], [b"{}"]]


async def test_what_has_ended_is_passed_over_when_it_comes_again() -> None:
    batch, attempts = batch_of(b"{}", b"{}"), Attempts()
    attempts.known[batch.batch_id] = Attempt(batch.batch_id, 1, [], False)
    life = Life(Log(), attempts, TouchyEngine())
    life.lane.begin(delivery(batch, old=True))

    assert await life.end() is None
    assert (life.engine.runs, life.log.outcomes, attempts.said) == ([], [], [])
    assert life.consumer.offsets == [0]
    await life.isolation.forget(life.consumer.is_committed)
    assert attempts.known == {}


async def test_what_ends_beside_a_danger_is_not_run_again_after_the_next_death(rest: Rest) -> None:
    poison, new = batch_of(b"crash"), batch_of(b"{}", b"{}")
    log, attempts = Log(), Attempts()
    attempts.known[poison.batch_id] = Attempt(poison.batch_id, 1, first_units(1), True)
    life = Life(log, attempts, TouchyEngine(), rest_s=Rest.LASTS_S)
    assert not life.trials.in_danger()
    life.lane.begin(delivery(poison, old=True))
    await rest.begun.wait()
    assert life.trials.in_danger()
    life.lane.begin(delivery(new, offset=1))
    await rest.end_when(lambda: life.consumer.offsets == [1])
    assert isinstance(await life.end(), EngineDeadError)
    assert life.consumer.offsets == [1]  # and it cannot be committed before the other

    life = Life(log, attempts, TouchyEngine())
    life.lane.begin(delivery(new, old=True, offset=1))
    assert await life.end() is None
    assert (life.engine.runs, life.trials.in_danger()) == ([], False)


async def test_an_attempt_is_durable_before_its_unit_begins() -> None:
    attempts, engine = Attempts(), TouchyEngine()
    life = Life(Log(), attempts, engine)
    engine.hold.clear()
    batch = batch_of(*[b"{}"] * 10, *[b"hold"] * 10)
    life.lane.begin(delivery(batch, old=True))
    await engine.holds.wait()
    said = attempts.known[batch.batch_id]
    assert said.is_running
    assert (said.units[0].first, said.units[0].count) == (10, 10)
    engine.hold.set()
    assert await life.end() is None


@pytest.mark.parametrize("poison", [b"oom", b"memory"])
async def test_what_fits_no_memory_fails_alone_and_no_process_ends(poison: bytes) -> None:
    bodies = [b"{}"] * 100
    bodies[42] = poison
    life = Life(Log(), Attempts(), TouchyEngine())
    life.lane.begin(delivery(batch_of(*bodies)))

    assert await life.end() is None
    ends = results(life.log)
    assert {index for index, (end, _) in ends.items() if end is Outcome.FAILED} == {42}
    assert len(ends) == len(life.log.outcomes) == 100
    (failed,) = (o for o in life.log.outcomes if o.index == 42)
    assert (code_of(failed), failed.retryable) == ("item_out_of_memory", False)
    assert life.attempts.said == []
    assert life.consumer.offsets == [0]
    assert life.capacity.in_flight == 0


async def test_a_batch_that_is_only_too_large_is_split_and_loses_nothing() -> None:
    life = Life(Log(), Attempts(), TouchyEngine(room=30))
    life.lane.begin(delivery(batch_of(*[b"{}"] * 100)))

    assert await life.end() is None
    assert results(life.log) == dict.fromkeys(range(100), (Outcome.SUCCEEDED, 1))
    assert [len(run) for run in life.engine.runs] == [100] + [10] * 10


async def held(*, old: bool) -> tuple[Life, Delivery]:
    """Return a replica that holds a batch in execution; its first item, or unit, is answered."""
    life = Life(Log(), Attempts(), TouchyEngine())
    life.engine.hold.clear()
    taken = delivery(batch_of(*[b"{}"] * (PARTS if old else 1), *[b"hold"] * 3), old=old)
    life.lane.begin(taken)
    await life.engine.holds.wait()
    return life, taken


async def test_a_lost_partition_drops_its_work_and_publishes_what_it_has() -> None:
    life, _ = await held(old=False)
    await life.lane.let_go({("batches.p.bulk", 0)}, lost=True)
    assert await life.end() is None

    assert life.engine.running == 0
    assert [o.index for o in life.log.outcomes] == [0]
    assert life.log.put_back == []
    assert life.consumer.offsets == []
    assert life.capacity.in_flight == 0


async def test_a_partition_that_moves_in_good_order_leaves_nothing_to_run_twice() -> None:
    life, _ = await held(old=False)
    await life.lane.let_go({("batches.p.bulk", 1)}, lost=False)
    assert life.engine.running == 1
    await life.lane.let_go({("batches.p.bulk", 0)}, lost=False)

    assert life.log.put_back == [1, 2, 3]
    assert life.consumer.offsets == [0]
    assert await life.end() is None


async def test_the_next_owner_of_what_may_have_run_charges_nobody_for_a_move() -> None:
    life, taken = await held(old=True)
    await life.lane.let_go({("batches.p.bulk", 0)}, lost=False)
    assert (life.log.put_back, life.consumer.offsets) == ([], [])
    said = life.attempts.known[taken.batch.batch_id]
    assert not said.is_running
    assert [(unit.first, unit.count, unit.crashes) for unit in said.units] == [(PARTS, 3, 1)]

    after = Life(life.log, life.attempts, TouchyEngine())
    after.lane.begin(taken)
    assert await after.end() is None
    assert sorted(o.index for o in life.log.outcomes) == [*range(PARTS + 3)]
    assert {attempt.life for attempt in life.attempts.said} == {1, 2}


async def test_a_clean_leave_hands_back_and_forgets() -> None:
    life, _ = await held(old=True)
    life.lane.hand_back()
    assert await life.end() is None

    assert life.log.put_back == [*range(PARTS, PARTS + 3)]
    assert life.consumer.offsets == [0]
    await life.isolation.forget(life.consumer.is_committed)
    assert life.attempts.known == {}


async def test_a_pool_that_goes_away_gets_a_split_batch_back_whole() -> None:
    life = Life(Log(), Attempts(), TouchyEngine())
    life.engine.away = True
    life.lane.begin(delivery(batch_of(*[b"{}"] * 20), old=True))
    assert await life.end() is None

    assert life.log.put_back == [*range(20)]
    assert [attempt.units for attempt in life.attempts.known.values()] == [[]]


async def test_a_death_before_the_commit_runs_nothing_of_what_has_ended_again() -> None:
    log, attempts = Log(), Attempts()
    batch = batch_of(*[b"{}"] * 12, b"crash")
    deaths = await lives_of(batch, log, attempts)
    assert deaths == 3
    ended = [*log.outcomes]

    after = Life(log, attempts, TouchyEngine())  # the offset was not committed: all of it again
    after.lane.begin(delivery(batch, old=True))
    assert await after.end() is None
    assert (after.engine.runs, log.outcomes, log.put_back) == ([], ended, [])
    assert after.consumer.offsets == [0]


async def test_what_is_not_committed_is_not_forgotten() -> None:
    life = Life(Log(), Attempts(), TouchyEngine())
    batches = [batch_of(b"{}"), batch_of(b"{}")]
    for offset, batch in enumerate(batches):
        life.lane.begin(delivery(batch, old=True, offset=offset))
    assert await life.end() is None

    await life.isolation.forget(lambda record: record.offset == 0)
    assert list(life.attempts.known) == [batches[1].batch_id]
    await life.isolation.forget(lambda record: True)
    assert life.attempts.known == {}


async def test_items_of_closed_jobs_are_not_run_when_they_come_again() -> None:
    life = Life(Log(), Attempts(), TouchyEngine())
    batch = batch_of(*[b"crash"] * 20)
    life.closed.closed.add(batch.parts[0].job.job_id)
    life.lane.begin(delivery(batch, old=True))
    assert await life.end() is None

    assert (life.engine.runs, life.log.outcomes, life.log.put_back) == ([], [], [])
    assert life.consumer.offsets == [0]
    assert life.capacity.in_flight == 0
