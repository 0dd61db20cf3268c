"""Goal: over simulated time a pool follows its load: no flips, all is served, back to zero.

The pool serves work at its replicas' rates; a replica is ready a cold start after its order is
seen. Arrivals are random with a seed. One decision each second.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.policy.scaling_decision import ScalingDecision
from autoscaler.policy.scaling_history import PoolHistory, first_history
from autoscaler.policy.scaling_rules import ScalingRules
from autoscaler.policy.scaling_step import decide
from autoscaler.policy.signals import (
    ArrivalRates,
    PoolSignals,
    ReplicaSignal,
    ReplicaState,
    advance_arrivals,
)
from tests.support.scaling import COLD_START_S, NOW_S, RATE, bucket, replica, rules_of


@dataclass
class Simulation:
    """One pool in steps of a second."""

    rules: ScalingRules
    delay_s: int = 5  # from a decision until its replicas are seen
    rate_limit: float = float("inf")  # of the pool, whatever its replicas
    now_s: float = NOW_S
    online: float = 0.0
    bulk: float = 0.0
    deadline_s: float = NOW_S
    seconds: float = 0.0  # replica-seconds
    rates: ArrivalRates = field(default_factory=lambda: ArrivalRates(at_s=NOW_S))
    history: PoolHistory = field(default_factory=lambda: first_history(NOW_S, 0))
    replicas: dict[str, float] = field(default_factory=dict)  # id: when it is ready
    orders: deque[ScalingDecision] = field(default_factory=deque)
    decisions: list[ScalingDecision] = field(default_factory=list)
    served: float = 0.0

    def advance(self, arrived: float) -> None:
        """Advance one second: work arrives, is served, and a decision is made."""
        self.now_s += 1
        self.rates = advance_arrivals(self.rates, arrived, self.now_s)
        ready = sum(at_s <= self.now_s for at_s in self.replicas.values())
        capacity = min(ready * RATE, self.rate_limit)
        waiting = self.online + arrived
        self.online = max(0.0, waiting - capacity)
        bulk = min(self.bulk, capacity - (waiting - self.online))
        self.bulk -= bulk
        self.served = waiting - self.online + bulk
        self.seconds += len(self.replicas)
        decision, self.history = decide(self.rules, self._signals(), self.history, self.now_s)
        self.decisions.append(decision)
        self.orders.append(decision)
        if len(self.orders) > self.delay_s:
            self._carry_out(self.orders.popleft().target)

    def _signals(self) -> PoolSignals:
        listed: list[ReplicaSignal] = []
        for number, at_s in enumerate(self.replicas.values()):
            state = ReplicaState.WARM if at_s <= self.now_s else ReplicaState.STARTING
            listed.append(replica(number, state))
        is_bulk = self.bulk > 0
        return PoolSignals(
            arrivals=self.rates,
            online_backlog_tokens=self.online,
            bulk=(bucket(self.bulk, 0, self.deadline_s),) if is_bulk else (),
            replicas=tuple(listed),
            rate_tokens_per_s=self.served,
        )

    def _carry_out(self, target: int) -> None:
        while len(self.replicas) < target:
            name = f"{self.now_s}-{len(self.replicas)}"
            self.replicas[name] = self.now_s + COLD_START_S - self.delay_s
        while len(self.replicas) > target:
            self.replicas.popitem()

    def targets(self) -> list[int]:
        """Return the targets without repetitions."""
        all_targets = [one.target for one in self.decisions]
        pairs = zip(all_targets, [-1, *all_targets], strict=False)
        return [one for one, before in pairs if one != before]


def turns(targets: list[int]) -> int:
    """Count changes of direction."""
    signs = [after > before for before, after in pairwise(targets)]
    return sum(one != other for one, other in pairwise(signs))


def run(simulation: Simulation, seconds: int, arrived: Callable[[], float]) -> Simulation:
    for _ in range(seconds):
        simulation.advance(arrived())
    return simulation


def noisy(seed: int, per_s: float) -> Callable[[], float]:
    """Requests of 500 tokens, about Poisson, of a mean rate."""
    chance = random.Random(seed)
    mean = per_s / 500
    return lambda: 500.0 * max(0, round(chance.gauss(mean, mean**0.5)))


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
