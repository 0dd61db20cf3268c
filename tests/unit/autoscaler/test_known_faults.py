"""Goal: each known fault of other autoscalers has a test that names it.

Sources: issues and documentation of HPA (kubernetes/kubernetes), KEDA (kedacore/keda), Knative and
Ray Serve.
"""

import math
from itertools import pairwise
from typing import Any

from msgspec.structs import replace

from autoscaler.policies.policies import Policies
from autoscaler.policies.policy_rules import rules_of as rules_of_policies
from autoscaler.policies.pool_policy import PolicyMode, PoolPolicy
from autoscaler.policy.scaling_history import PoolHistory, first_history
from autoscaler.policy.scaling_step import decide
from autoscaler.policy.signals import ReplicaState
from tests.support.scaling import NOW_S, RATE, gpu_type, replica, rules_of, signals_of, warm
from tests.support.scaling_simulation import Simulation, noisy, run, turns

START_S = 20.0
FAST = rules_of(gpu_types=(gpu_type(cold_start_s=START_S),))


def observed(target: int, **fields: Any) -> PoolHistory:
    """A history of an hour without work or changes."""
    history = first_history(NOW_S - 3600, target)
    return replace(history, at_s=NOW_S - 1, last_work_s=NOW_S - 3600, **fields)


def test_nan_at_zero_traffic() -> None:
    """A rate divided by no replicas or no requests is 0 and not NaN."""
    unmeasured = (replica(1, tokens_per_s=0.0),)
    for replicas in ((), warm(1), unmeasured):
        decision, history = decide(FAST, signals_of(0.0, replicas), observed(0), NOW_S)
        assert decision.need.exact == 0.0
        assert decision.needed == 0
        assert math.isfinite(history.peak)
    nameless = rules_of_policies(Policies({}, PoolPolicy(), {}), "any")
    assert decide(nameless, signals_of(), observed(0), NOW_S)[0].need.exact == 0.0


def test_below_min_while_metrics_are_out() -> None:
    missing = signals_of(age_s={"online": 1e6, "bulk": 1e6, "replicas": 1e6})
    history = observed(0)
    for second in range(120):
        decision, history = decide(rules_of(min_replicas=3), missing, history, NOW_S + second)
        assert decision.target == 3
        assert len(decision.additions) == 3


def test_flapping_between_two_and_one() -> None:
    """A load that one replica nearly holds does not take the second one away and back."""
    for per_s in (780.0, 800.0, 820.0):
        simulation = run(Simulation(FAST, start_s=START_S), 1500, noisy(11, per_s))
        settled = [one.target for one in simulation.decisions[-900:]]
        assert turns(settled) <= 1
        assert set(settled) <= {1, 2}


def test_counts_changed_by_hand() -> None:
    """Replicas that somebody added are seen and go by the rules; ones that were ended come back."""
    added, _ = decide(FAST, signals_of(800.0, warm(6)), observed(1), NOW_S)
    assert (added.current, added.action) == (6, "down")
    assert added.target == 5  # by a quarter, not at once
    ended, _ = decide(FAST, signals_of(2400.0), observed(3), NOW_S)
    assert (ended.target, len(ended.additions)) == (3, 3)


def test_delays_counted_in_loops_instead_of_seconds() -> None:
    """Decisions 20 times as often reduce at the same times."""

    def reductions(step_s: float) -> list[tuple[int, int]]:
        history, count, found = observed(16), 16, []
        for number in range(int(150 / step_s)):
            now_s = NOW_S + number * step_s
            decision, history = decide(FAST, signals_of(0.0, warm(count), now_s), history, now_s)
            if decision.target < count:
                count = decision.target
                found.append((int(now_s - NOW_S), count))
        return found

    assert reductions(1.0) == reductions(0.05) == [(0, 12), (30, 9), (60, 7), (90, 6), (120, 5)]


def test_starts_cut_before_ready() -> None:
    """A load that goes away while replicas start ends none of them before it was ready."""
    history = first_history(NOW_S - 3600, 0)
    starting = tuple(replica(number, ReplicaState.STARTING) for number in range(4))
    for second in range(int(START_S)):
        now_s = NOW_S + second
        per_s = 3200.0 if second < 5 else 0.0
        decision, history = decide(FAST, signals_of(per_s, starting, now_s), history, now_s)
        assert decision.removals == ()
        assert decision.target >= 4


def test_panic_while_starting() -> None:
    """The backlog of a start does not order more replicas each second while they start."""
    simulation = run(Simulation(FAST, start_s=START_S), 120, lambda: 2.5 * RATE)
    orders = [one.target for one in simulation.decisions[: int(START_S)]]

    assert all(after >= before for before, after in pairwise(orders))
    # What the arrivals need, and once the backlog of the start over the time to work it off.
    assert max(orders) <= math.ceil(2.5 / 0.8 + 2.5 * (START_S + 1) / FAST.online_drain_s)
    assert simulation.online == 0


def test_stale_data() -> None:
    """Old numbers lower nothing, and a target is raised by those that are fresh."""
    for name in ("online", "bulk", "replicas"):
        stale = signals_of(0.0, warm(5), age_s={name: 3.1})
        held, _ = decide(FAST, stale, observed(5), NOW_S)
        assert (held.target, held.removals) == (5, ())
        fresh = signals_of(0.0, warm(5), age_s={name: 2.9})
        assert decide(FAST, fresh, observed(5), NOW_S)[0].target == 4
    busy = signals_of(8000.0, warm(5), age_s={"bulk": 60.0})
    assert decide(FAST, busy, observed(5), NOW_S)[0].target == 10


def test_a_dry_run_decides_as_a_real_one() -> None:
    """The mode is no input of a decision: `observe` and `active` have the same rules."""
    fields: dict[str, Any] = {"replicas_max": 9, "warm_replicas": 1, "queue_s": 4.0}
    modes = [
        rules_of_policies(Policies({}, PoolPolicy(mode=mode, **fields), {}), "chat")
        for mode in (PolicyMode.ACTIVE, PolicyMode.OBSERVE)
    ]
    signals = signals_of(3000.0, warm(2))
    (real, after), (dry, dry_after) = (
        decide(rules, signals, observed(2), NOW_S) for rules in modes
    )
    assert (real, after) == (dry, dry_after)
    assert real.action == "up"


def test_zero_comes_once_the_idle_time_and_not_twice() -> None:
    """The idle time counts from the last arrival (KEDA's cooldownPeriod begins when it ended)."""
    history, now_s = replace(observed(1), last_work_s=NOW_S), NOW_S
    rates = replace(signals_of(1.0).arrivals, fast_per_s=1e-9, slow_per_s=1e-9)
    while history.target == 1:
        now_s += 10
        signals = replace(signals_of(0.0, warm(1)), arrivals=rates)
        _, history = decide(FAST, signals, history, now_s)
    assert now_s == NOW_S + FAST.idle_s


def test_a_stream_that_runs_is_not_cut_by_zero() -> None:
    history, now_s = observed(1), NOW_S
    while history.target == 1:
        now_s += 10
        serving = (replica(1, load_tokens=5.0 if now_s <= NOW_S + 900 else 0.0),)
        decision, history = decide(FAST, signals_of(0.0, serving, now_s), history, now_s)
    assert decision.need.exact == 0
    assert now_s == NOW_S + 900 + FAST.idle_s
