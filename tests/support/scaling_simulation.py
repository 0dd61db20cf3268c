"""A pool in simulated time, whose decisions are carried out; one decision each second.

The pool serves work at its replicas' rates; a replica is ready a cold start after its order is
seen.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

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
from tests.support.scaling import COLD_START_S, NOW_S, RATE, bucket, replica


@dataclass
class Simulation:
    """One pool in steps of a second."""

    rules: ScalingRules
    start_s: float = COLD_START_S  # from a decision until its replicas are ready
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
            self.replicas[name] = self.now_s + self.start_s - self.delay_s
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
