"""Goal: over simulated time a pool follows its load: no flips, all is served, back to zero.

Arrivals are random with a seed.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.scaling import NOW_S, gpu_type, rules_of
from tests.support.scaling_simulation import Simulation, noisy, run, turns


@settings(deadline=None, max_examples=5)
@given(st.floats(1, 9000))
def test_a_constant_load_turns_once_at_most(per_s: float) -> None:
    """The backlog of the cold start may raise the target above what the load needs: then it falls.

    After that it stays.
    """
    simulation = run(Simulation(rules_of()), 1800, lambda: per_s)

    assert turns(simulation.targets()) <= 1
    assert len({one.target for one in simulation.decisions[-600:]}) == 1
    assert simulation.online == 0


@pytest.mark.parametrize("per_s", [700.0, 1500.0, 3100.0])
def test_a_noisy_load_does_not_alternate(per_s: float) -> None:
    simulation = run(Simulation(rules_of()), 1800, noisy(7, per_s))

    assert turns(simulation.targets()) <= 2
    assert simulation.online < 2 * per_s


def test_a_burst_is_served_and_the_pool_goes_back_to_zero() -> None:
    simulation = Simulation(rules_of(max_replicas=12))
    run(simulation, 300, noisy(1, 800.0))
    run(simulation, 120, noisy(2, 6000.0))
    run(simulation, 300, noisy(3, 800.0))
    assert simulation.online == 0
    run(simulation, 1800, lambda: 0.0)

    assert max(simulation.targets()) <= 12
    assert simulation.decisions[-1].target == 0
    assert not simulation.replicas


def test_a_job_uses_its_slack_and_ends_before_its_deadline() -> None:
    simulation = Simulation(rules_of(), bulk=3_000_000.0, deadline_s=NOW_S + 3600)
    run(simulation, 3600, lambda: 0.0)

    assert simulation.bulk == 0
    assert max(simulation.targets()) <= 2  # 3,000 s of one replica's work in an hour
    assert simulation.seconds < 2 * 3000 + 1000


def test_a_slow_actuator_is_not_ordered_more() -> None:
    """Delays are not counted in loops: with 40 s until orders are seen, the peak is the same."""
    fast = run(Simulation(rules_of(), delay_s=1), 900, lambda: 2000.0)
    slow = run(Simulation(rules_of(), delay_s=40), 900, lambda: 2000.0)

    assert max(slow.targets()) <= max(fast.targets()) + 1


def test_useless_replicas_are_vetoed_and_the_operator_is_told() -> None:
    """A pool bound by something else stops growing; one that its replicas bind does not."""
    bound = run(Simulation(rules_of(), rate_limit=1500.0), 900, lambda: 1700.0)
    free = run(Simulation(rules_of()), 900, lambda: 1700.0)
    vetoed = [one for one in bound.decisions if one.alert]
    stopped = [one for one in vetoed if one.reason == "veto"]

    assert stopped
    assert all(one.withheld[-1].reason == "veto" for one in stopped)
    assert len({one.target for one in vetoed[:300]}) == 1
    assert not any(one.alert for one in free.decisions)


@pytest.mark.parametrize("per_s", [300.0, 900.0, 1650.0, 2400.0, 5200.0])
def test_starts_of_20_s_do_not_make_a_constant_load_flip(per_s: float) -> None:
    rules = rules_of(gpu_types=(gpu_type(cold_start_s=20.0),), burst_factor=1.0)
    steady = run(Simulation(rules, start_s=20.0), 900, lambda: per_s)
    random = run(Simulation(rules, start_s=20.0), 900, noisy(5, per_s))

    assert turns(steady.targets()) <= 1
    assert len({one.target for one in steady.decisions[-300:]}) == 1
    assert turns(random.targets()) <= 2
    assert steady.online == 0


def backlog_s(drain_s: float) -> int:
    """Return for how long calls wait after the first replicas are ready, in seconds."""
    rules = rules_of(online_drain_s=drain_s)
    simulation = run(Simulation(rules), int(rules.gpu_types[0].cold_start_s) + 1, lambda: 1700.0)
    for second in range(300):
        if simulation.online == 0:
            return second
        simulation.advance(1700.0)
    raise AssertionError("the backlog did not end")


def test_a_drain_time_as_long_as_a_start_would_break_the_slo_of_the_queue() -> None:
    """Why `online_drain_s` is `queue_s`, and not the time of a start where that is longer."""
    assert backlog_s(5.0) < backlog_s(90.0) / 2
    assert backlog_s(90.0) > 90
