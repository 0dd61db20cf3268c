"""Goal: what is suspected for the first time holds up nobody, and what is suspected again does."""

import asyncio

import pytest

from core.outcomes import Outcome
from tests.unit.gpu_consumers.attempts import Attempts
from tests.unit.gpu_consumers.bulk_bench import Life, Log, TouchyEngine, batch_of, delivery
from topics.records.records import AttemptUnit, BatchAttempt


async def test_what_is_new_runs_beside_what_lay_in_one_replica_that_ended() -> None:
    life = Life(Log(), Attempts(), TouchyEngine())
    life.engine.hold.clear()
    life.lane.begin(delivery(batch_of(b"hold", *[b"{}"] * 99), old=True))
    await life.engine.holds.wait()
    life.lane.begin(delivery(batch_of(b"{}"), offset=1))
    await asyncio.sleep(0.01)
    assert [len(run) for run in life.engine.runs] == [10, 1]
    assert life.consumer.offsets == [1]
    life.engine.hold.set()

    assert await life.end() is None
    assert [len(run) for run in life.engine.runs] == [10, 1] + [10] * 9


async def test_what_is_new_waits_for_what_was_in_two_that_ended() -> None:
    attempts, poison = Attempts(), batch_of(b"hold", b"{}")
    units = [AttemptUnit(0, 1, 2), AttemptUnit(1, 1, 2)]
    attempts.known[poison.batch_id] = BatchAttempt(poison.batch_id, 2, units, False)
    life = Life(Log(), attempts, TouchyEngine())
    life.engine.hold.clear()
    life.lane.begin(delivery(poison, old=True))
    await life.engine.holds.wait()
    life.lane.begin(delivery(batch_of(b"new"), offset=1))
    await asyncio.sleep(0.01)
    assert life.engine.runs == [[b"hold"]]
    life.engine.hold.set()

    assert await life.end() is None
    assert life.engine.runs == [[b"hold"], [b"new"], [b"{}"]]
    assert life.engine.together_max == 1


async def test_small_batches_that_came_again_run_at_once_ten_items_at_most() -> None:
    life = Life(Log(), Attempts(), TouchyEngine())
    life.engine.hold.clear()
    for offset, size in enumerate((4, 4, 4)):
        life.lane.begin(delivery(batch_of(*[b"hold"] * size), old=True, offset=offset))
    await asyncio.sleep(0.01)
    assert [len(run) for run in life.engine.runs] == [4, 4]
    assert sorted(attempt.is_running for attempt in life.attempts.known.values()) == [True] * 2
    life.engine.hold.set()

    assert await life.end() is None
    assert [len(run) for run in life.engine.runs] == [4, 4, 4]
    assert life.engine.together_max == 2


@pytest.mark.parametrize("bodies", [[b"oom"], [b"oom", b"{}"], [b"{}", b"oom"]])
async def test_what_fits_no_memory_beside_others_is_tried_alone_before_it_fails(
    bodies: list[bytes],
) -> None:
    life = Life(Log(), Attempts(), TouchyEngine())
    life.lane.begin(delivery(batch_of(*bodies), old=True))

    assert await life.end() is None
    assert life.engine.runs[0] == bodies
    assert life.engine.runs[1] == bodies[bodies.index(b"oom") :]
    runs = [attempt.is_running for attempt in life.attempts.said]
    assert runs[:3] == [True, False, True], "between the two it does not run"
    failed = [o.index for o in life.log.outcomes if o.outcome is Outcome.FAILED]
    assert (failed, len(life.log.outcomes)) == ([bodies.index(b"oom")], len(bodies))
