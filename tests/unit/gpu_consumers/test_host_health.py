"""Goal: a host that kills what runs on it costs its own time, and fails no innocent item."""

import random

import pytest

from core.errors import EngineDeadError
from core.outcomes import Outcome
from gpu_consumers.quarantine.host_health import HostHealth
from gpu_consumers.quarantine.host_history import UNEXPLAINED_ENDS_MAX, HostVerdict
from tests.unit.gpu_consumers.fakes import MemoryAttemptLog, RecordingProducer, run_loop
from tests.unit.gpu_consumers.killed_hosts import CONCURRENCY, Work, run_host
from tests.unit.gpu_consumers.replicas import BulkReplica, batch_of
from topics.records.records import AttemptUnit, Batch, BatchAttempt

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
