"""Goal: a host that kills what runs on it costs its own time, and fails no innocent item."""

import random

import pytest

from gpu_consumers.quarantine.host_history import UNEXPLAINED_ENDS_MAX
from tests.unit.gpu_consumers.killed_hosts import CONCURRENCY, Work, run_host

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
