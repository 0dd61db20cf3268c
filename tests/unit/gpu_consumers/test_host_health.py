"""Goal: a host that kills what runs on it costs its own time, and fails no innocent item."""

import asyncio
import random
from uuid import UUID

import pytest

from core.errors import EngineDeadError
from core.outcomes import Outcome
from gpu_consumers.quarantine.host_health import HostHealth
from gpu_consumers.quarantine.host_history import UNEXPLAINED_ENDS_MAX, HostVerdict
from gpu_consumers.quarantine.other_hosts import SUCCESSOR_S_MAX, WAIT_S_MAX
from tests.support.virtual_time import run_in_virtual_time
from tests.unit.gpu_consumers.fakes import MemoryAttemptLog, RecordingProducer, run_loop
from tests.unit.gpu_consumers.killed_hosts import CONCURRENCY, Work, run_host
from tests.unit.gpu_consumers.replicas import BulkReplica, batch_of
from topics.records.attempts import AttemptUnit, BatchAttempt, ReplicaProcess
from topics.records.records import Batch

NEVER_S = 1000.0
"""Longer than any test: the host does not prove itself."""

FAILING = HostVerdict(UNEXPLAINED_ENDS_MAX + 1, proof_s=NEVER_S)


def host(name: str = "h", *, proof_s: float = NEVER_S) -> HostHealth:
    return HostHealth(host_id=name, verdict=HostVerdict(proof_s=proof_s))


def add_attempt(attempts: MemoryAttemptLog, batch: Batch, unit: AttemptUnit) -> None:
    """Add the attempt of an owner on host `h` that crashed while the unit ran."""
    attempts.latest[batch.batch_id] = BatchAttempt(batch.batch_id, 3, [unit], True, host_id="h")


async def test_an_item_that_crashed_alone_waits_until_its_host_has_proven_itself() -> None:
    batch, attempts = batch_of(b"crash"), MemoryAttemptLog()
    add_attempt(attempts, batch, AttemptUnit(0, 1, 2))
    waiting = BulkReplica(attempts=attempts, host=host())
    waiting.start_batch(batch, is_redelivered=True)
    await run_loop()
    (unit,) = attempts.latest[batch.batch_id].units
    assert (waiting.log.outcomes, waiting.engine.executed) == ([], [])
    assert (unit.crashes, unit.hosts, unit.awaits_proof) == (3, ["h"], True)

    replica = BulkReplica(attempts=attempts, host=host(proof_s=0.01))
    replica.start_batch(batch, is_redelivered=True)
    assert await replica.wait_ended() is None
    assert [outcome.outcome for outcome in replica.log.outcomes] == [Outcome.FAILED]
    assert (replica.engine.executed, replica.consumer.offsets) == ([], [0])


@pytest.mark.parametrize("body", [b"crash", b"{}"])
async def test_an_item_that_crashed_alone_runs_alone_on_a_second_host(body: bytes) -> None:
    batch, attempts, log = batch_of(body), MemoryAttemptLog(), RecordingProducer()
    add_attempt(attempts, batch, AttemptUnit(0, 1, 2))
    second = BulkReplica(log, attempts, host=host("other"))
    second.start_batch(batch, is_redelivered=True)
    failure = await second.wait_ended()
    assert second.engine.executed == [[body]]

    if body == b"crash":
        assert isinstance(failure, EngineDeadError)
        third = BulkReplica(log, attempts, host=host("other"))
        third.start_batch(batch, is_redelivered=True)
        assert await third.wait_ended() is None
        assert third.engine.executed == []
    is_poison = body == b"crash"
    outcome = Outcome.FAILED if is_poison else Outcome.SUCCEEDED
    assert [outcome.outcome for outcome in log.outcomes] == [outcome]


CRASHED, SUCCESSOR = UUID(int=71), UUID(int=72)


def record_successor(attempts: MemoryAttemptLog, *, has_served: bool) -> None:
    """Record the process that followed `CRASHED` on host `h`."""
    process = ReplicaProcess("n", 1, "p", 0.0, has_served=has_served, predecessors=[CRASHED])
    attempts.latest[SUCCESSOR] = BatchAttempt(SUCCESSOR, 1, [], False, host_id="h", process=process)


def test_an_item_that_moves_is_charged_once_its_first_host_has_served() -> None:
    """It was in its batch, in a tenth and alone in a crash: there is no fourth."""

    async def run() -> None:
        batch, attempts = batch_of(b"crash"), MemoryAttemptLog()
        unit = AttemptUnit(0, 1, 2)
        attempts.latest[batch.batch_id] = BatchAttempt(
            batch.batch_id, 3, [unit], True, host_id="h", process_id=CRASHED
        )
        second = BulkReplica(attempts=attempts, host=host("other"))
        second.start_batch(batch, is_redelivered=True)
        await asyncio.sleep(SUCCESSOR_S_MAX / 2)
        record_successor(attempts, has_served=False)
        await asyncio.sleep(SUCCESSOR_S_MAX / 2 + 5)
        assert (second.log.outcomes, second.engine.executed) == ([], [])
        record_successor(attempts, has_served=True)
        assert await second.wait_ended() is None
        assert [outcome.outcome for outcome in second.log.outcomes] == [Outcome.FAILED]
        assert second.engine.executed == []

    run_in_virtual_time(run())


@pytest.mark.parametrize("restarts", [False, True])
def test_an_item_whose_first_host_does_not_serve_runs_once_more(restarts: bool) -> None:
    """The host is lost, or starts one process after the other."""

    async def run() -> None:
        batch, attempts, log = batch_of(b"crash"), MemoryAttemptLog(), RecordingProducer()
        unit = AttemptUnit(0, 1, 2)
        attempts.latest[batch.batch_id] = BatchAttempt(
            batch.batch_id, 3, [unit], True, host_id="h", process_id=CRASHED
        )
        second = BulkReplica(log, attempts, host=host("other"))
        second.start_batch(batch, is_redelivered=True)
        loop, number = asyncio.get_running_loop(), 100
        while not second.engine.executed:
            await asyncio.sleep(SUCCESSOR_S_MAX / 2)
            if restarts:
                number += 1
                process = ReplicaProcess("n", 1, "p", 0.0, predecessors=[CRASHED])
                id_ = UUID(int=number)
                attempts.latest[id_] = BatchAttempt(id_, 1, [], False, host_id="h", process=process)
        limit_s = WAIT_S_MAX if restarts else SUCCESSOR_S_MAX
        assert limit_s / 2 <= loop.time() <= limit_s + SUCCESSOR_S_MAX
        assert isinstance(await second.wait_ended(), EngineDeadError)

        third = BulkReplica(log, attempts, host=host("other"))
        third.start_batch(batch, is_redelivered=True)
        assert await third.wait_ended() is None
        assert third.engine.executed == []
        assert [outcome.outcome for outcome in log.outcomes] == [Outcome.FAILED]

    run_in_virtual_time(run())


async def test_suspects_run_together_on_a_failing_host() -> None:
    batch, attempts = batch_of(*[b"{}"] * 8), MemoryAttemptLog()
    units = [AttemptUnit(position, 1, 2) for position in range(8)]
    attempts.add(batch, *units, is_running=False)
    failing = HostHealth(host_id="h", verdict=FAILING)
    replica = BulkReplica(attempts=attempts, host=failing)
    replica.start_batch(batch, is_redelivered=True)

    assert await replica.wait_ended() is None
    assert len(replica.log.outcomes) == 8
    assert all(attempt.host_is_failing for attempt in attempts.recorded)


async def test_a_crash_on_a_failing_host_is_not_counted() -> None:
    batch, attempts = batch_of(b"crash", b"{}"), MemoryAttemptLog()
    attempts.add(batch, AttemptUnit(0, 2, 1), is_running=False)
    executed = 0
    for _ in range(3):
        replica = BulkReplica(attempts=attempts, host=HostHealth(host_id="h", verdict=FAILING))
        replica.start_batch(batch, is_redelivered=True)
        assert isinstance(await replica.wait_ended(), EngineDeadError)
        executed += len(replica.engine.executed)
        (unit,) = attempts.latest[batch.batch_id].units
        assert (unit.count, unit.crashes) == (2, 1)
    assert executed == 3

    replica = BulkReplica(attempts=attempts, host=HostHealth(host_id="h", verdict=FAILING))
    replica.start_batch(batch, is_redelivered=True)
    await run_loop()
    assert replica.engine.executed == []  # forgiven three times: it waits for a proven host


KILLS = 12
ENDS_OF_OTHERS_MAX = 4
"""Kills that count for an innocent job at most: an item of it ran alone by chance."""


@pytest.mark.parametrize("restart_s", [0.7, 1.0, 1.5])
@pytest.mark.parametrize(("interval_s", "item_s"), [(2.5, 1.5), (5.0, 1.5), (6.0, 3.0)])
def test_a_host_that_is_killed_again_and_again_costs_the_time_that_it_lost(
    interval_s: float, item_s: float, restart_s: float
) -> None:
    """Its suspects run together: 400 items that ran one by one took three times as long."""
    kills = [interval_s * (number + 1) for number in range(KILLS)]
    work = Work(item_count=400, item_s=item_s, restart_s=restart_s, kills=kills)
    ran = run_host(work)

    lost_s = KILLS * min(interval_s, restart_s + item_s)
    assert (ran.failed, len(ran.succeeded)) == (set(), 400)
    assert ran.took_s <= 1.5 * (400 / CONCURRENCY * item_s + lost_s)
    assert ran.process_ends <= ENDS_OF_OTHERS_MAX


def test_no_item_fails_on_a_host_that_is_killed_between_rounds() -> None:
    kills = [12.0 * (number + 1) for number in range(KILLS)]
    ran = run_host(Work(item_count=400, item_s=3.0, restart_s=0.7, kills=kills))

    assert (ran.failed, len(ran.succeeded)) == (set(), 400)
    assert ran.process_ends <= ENDS_OF_OTHERS_MAX


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("item_s", [0.2, 1.5])
def test_poison_items_fail_alone_on_a_host_that_serves(seed: int, item_s: float) -> None:
    """Of 1,000 items four are poison. Each crashes three processes at most, of which two count."""
    poison = frozenset(random.Random(seed).sample(range(1000), 4))
    ran = run_host(Work(item_count=1000, item_s=item_s, restart_s=1.0, poison=poison))

    assert ran.failed == poison
    assert ran.succeeded == set(range(1000)) - poison
    assert ran.deaths <= 3 * len(poison) + UNEXPLAINED_ENDS_MAX + 2
    assert len(poison) <= ran.process_ends <= 2 * len(poison)


@pytest.mark.parametrize("seed", range(4))
def test_a_poison_item_on_a_killed_host_fails_after_a_bounded_number_of_executions(
    seed: int,
) -> None:
    poison = frozenset(random.Random(seed).sample(range(400), 2))
    kills = [2.5 * (number + 1) for number in range(KILLS)]
    ran = run_host(Work(item_count=400, item_s=1.5, restart_s=1.0, poison=poison, kills=kills))

    assert (ran.failed, len(ran.succeeded)) == (set(poison), 398)
    assert max(ran.executions.values()) <= 6


def test_ends_that_a_quarter_of_poison_causes_count_for_its_job() -> None:
    poison = frozenset(random.Random(1).sample(range(160), 40))
    work = Work(item_count=160, item_s=1.5, restart_s=1.0, poison=poison, batch_items=32)
    ran = run_host(work)

    assert ran.failed == poison
    assert ran.process_ends >= 0.9 * ran.deaths


BUDGET = 60


@pytest.mark.parametrize("poison_in", [1, 10])
def test_few_ends_of_a_job_of_poison_are_not_counted(poison_in: int) -> None:
    """The end that exceeds its budget comes at most a batch of ends late."""
    item_count = 150 * poison_in
    work = Work(
        item_count=item_count,
        item_s=1.5,
        restart_s=1.0,
        poison=frozenset(random.Random(1).sample(range(item_count), item_count // poison_in)),
        batch_items=32,
        crash_budget=BUDGET,
    )
    ran = run_host(work)
    assert ran.process_ends > BUDGET
    assert ran.deaths <= BUDGET + work.batch_items
