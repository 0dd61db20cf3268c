"""Goal: a refused client that returns after exactly its `Retry-After` is admitted.

A discrete-event simulation of the policy: no clock, no sleep. `pytest -s` prints the figures.
"""

import sys
from collections.abc import Callable

import pytest

from core.overload.retry_promises import Client
from core.overload.shedding import ShedClass
from tests.support.overload_simulation import OverloadSimulation, SimulatedCall

RUN_S = 600.0


def bursts(now_s: float) -> float:
    """Twice the capacity for 20 s of every two minutes, and 0.95 of it in the mean."""
    return 2.0 if now_s % 120 < 20 else 0.74


def steady(_: float) -> float:
    return 1.0


def kept_part(refused: list[SimulatedCall], shed_class: ShedClass | None = None) -> float:
    """Part of the returns to a place, promised in a class or in any, that were admitted."""
    classes = [shed_class] if shed_class is not None else list(ShedClass)
    kept = sum(call.promised[-1] in classes for call in refused)
    promised = sum(promise in classes for call in refused for promise in call.promised)
    assert promised > 100
    return kept / promised


def longest_error(refused: list[SimulatedCall]) -> float:
    """The largest real wait in relation to the first `Retry-After`."""
    assert all(call.admitted_s is not None for call in refused)
    return max(((call.admitted_s or 0.0) - call.refused_s[0]) / call.told_s[0] for call in refused)


def mean_told_s(refused: list[SimulatedCall]) -> float:
    told_s = [told_s for call in refused for told_s in call.told_s]
    return sum(told_s) / len(told_s)


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


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("parallel", "every"), [(3, 1), (5, 2), (10, 20)])
def test_tenants_with_several_calls_get_the_places_within_their_share(
    seed: int, parallel: int, every: int
) -> None:
    """Those that return first may take their tenant above its share: the others keep their class.

    Places above the share are kept as far as tenants within theirs leave any.
    """
    simulation = OverloadSimulation(seed, parallel=parallel, parallel_every=every)
    refused = simulation.run(bursts, RUN_S)
    kept = kept_part(refused, ShedClass.INTERACTIVE)
    above = kept_part(refused, ShedClass.OVER_QUOTA_INTERACTIVE)
    sys.stdout.write(f"{seed}: {parallel} calls, kept {kept:.1%}, above the share {above:.1%}\n")
    assert kept >= 0.95


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("flood_per_s", [20.0, 100.0])
def test_a_tenant_that_floods_the_pool_costs_the_others_little(
    seed: int, flood_per_s: float
) -> None:
    """Half of the flood repeats one body. What the pool admits of it makes the queue longer."""
    calm, flooded = OverloadSimulation(seed), OverloadSimulation(seed, flood_per_s=flood_per_s)
    calm_s = mean_told_s(calm.run(bursts, RUN_S))
    refused = flooded.run(bursts, RUN_S)
    told_s, kept, error = mean_told_s(refused), kept_part(refused), longest_error(refused)
    sys.stdout.write(f"{seed}: {calm_s:.1f} s, flooded {told_s:.1f} s, kept {kept:.1%}\n")
    assert told_s <= 1.5 * calm_s
    assert kept >= 0.95
    assert error <= 2.0
    assert all(promise is not None for call in refused for promise in call.promised)


def test_few_slow_slots_keep_their_promises() -> None:
    refused = OverloadSimulation(5, slots=8, service_s=10.0, wait_s_max=20.0).run(steady, 1200.0)
    assert len(refused) > 100
    assert kept_part(refused) >= 0.9
    assert longest_error(refused) <= 2.0


def test_nobody_is_told_to_come_back_far_too_late() -> None:
    """At its return the pool is nearly full: an earlier time would not have been true."""
    simulation = OverloadSimulation(1)
    refused = simulation.run(bursts, RUN_S)
    told = [call.told_s[0] for call in refused]
    # A burst brings 20 s of work above the capacity.
    assert max(told) < 30


def test_callers_that_never_return_hold_no_place_for_long() -> None:
    simulation = OverloadSimulation(1)
    promises = simulation.control.promises
    for number in range(50):
        client = Client(number, 0)
        assert promises.add("p", client, ShedClass.INTERACTIVE, due_s=float(number))
    assert promises.promised("p", now_s=20.0)[ShedClass.INTERACTIVE] == 35  # 15 were due 5 s ago
    assert promises.promised("p", now_s=54.5) == (0, 0, 0, 0)
    assert promises.count == 0
