"""Goal: a refused client that returns after exactly its `Retry-After` is admitted.

A discrete-event simulation of the policy: no clock, no sleep. `pytest -s` prints the figures.
"""

import sys
from collections.abc import Callable

import pytest

from core.overload.shedding import ShedClass
from tests.support.overload_simulation import Client, OverloadSimulation

RUN_S = 600.0


def bursts(now_s: float) -> float:
    """Twice the capacity for 20 s of every two minutes, and 0.95 of it in the mean."""
    return 2.0 if now_s % 120 < 20 else 0.74


def steady(_: float) -> float:
    return 1.0


def kept_part(refused: list[Client]) -> float:
    """Part of the promised returns that were admitted."""
    return len(refused) / sum(len(client.told_s) for client in refused)


def longest_error(refused: list[Client]) -> float:
    """The largest real wait in relation to the first `Retry-After`."""
    assert all(client.admitted_s is not None for client in refused)
    return max(
        ((client.admitted_s or 0.0) - client.refused_s[0]) / client.told_s[0] for client in refused
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("offered", [bursts, steady])
def test_callers_that_return_when_told_are_admitted(
    seed: int, offered: Callable[[float], float]
) -> None:
    refused = OverloadSimulation(seed).run(offered, RUN_S)
    kept, error = kept_part(refused), longest_error(refused)
    sys.stdout.write(f"{seed}: {len(refused)} refused, kept {kept:.1%}, worst {error:.2f}\n")
    assert len(refused) > 100
    assert kept >= 0.9
    assert error <= 2.0


def test_few_slow_slots_keep_their_promises() -> None:
    refused = OverloadSimulation(5, slots=8, service_s=10.0, wait_s_max=20.0).run(steady, 1200.0)
    assert len(refused) > 100
    assert kept_part(refused) >= 0.9
    assert longest_error(refused) <= 2.0


def test_nobody_is_told_to_come_back_far_too_late() -> None:
    """At its return the pool is nearly full: an earlier time would not have been true."""
    simulation = OverloadSimulation(1)
    refused = simulation.run(bursts, RUN_S)
    told = [client.told_s[0] for client in refused]
    # A burst brings 20 s of work above the capacity.
    assert max(told) < 30


def test_callers_that_never_return_hold_no_place_for_long() -> None:
    simulation = OverloadSimulation(1)
    promises = simulation.control.promises
    for number in range(50):
        assert promises.add("p", number, ShedClass.INTERACTIVE, due_s=float(number))
    assert promises.promised("p", now_s=20.0)[ShedClass.INTERACTIVE] == 35  # 15 were due 5 s ago
    assert promises.promised("p", now_s=54.5) == (0, 0, 0, 0)
    assert promises.count == 0
