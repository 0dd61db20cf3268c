"""Goal: the warm pool is no capacity, is woken first and refilled, and the maximum counts it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from autoscaler.policy.placement import plan_additions
from autoscaler.policy.replica_need import replica_need
from autoscaler.policy.scaling_decision import ScalingDecision
from autoscaler.policy.scaling_history import PoolHistory, first_history
from autoscaler.policy.scaling_rules import ScalingRules
from autoscaler.policy.scaling_step import decide
from autoscaler.policy.signals import PoolSignals, ReplicaSignal, ReplicaState
from tests.support.scaling import NOW_S, gpu_type, replica, rules_of, signals_of, warm

AWAKE = [ReplicaState.WARM, ReplicaState.STARTING]


def asleep(count: int) -> tuple[ReplicaSignal, ...]:
    return tuple(replica(500 + number, ReplicaState.ASLEEP) for number in range(count))


def starting_for_the_warm_pool(count: int) -> tuple[ReplicaSignal, ...]:
    numbers = range(700, 700 + count)
    return tuple(replica(number, ReplicaState.STARTING, standby=True) for number in numbers)


def observed(target: int) -> PoolHistory:
    """A history of an hour without work or changes."""
    old_s = NOW_S - 3600
    return replace(first_history(old_s, target), at_s=NOW_S - 1, last_work_s=old_s)


def decided(rules: ScalingRules, signals: PoolSignals, target: int) -> ScalingDecision:
    return decide(rules, signals, observed(target), NOW_S)[0]


@given(st.floats(0, 1e5), st.integers(0, 8), st.integers(0, 8))
def test_sleeping_replicas_are_no_capacity(per_s: float, sleeping: int, starting: int) -> None:
    signals = signals_of(per_s, warm(2))
    pool = (*asleep(sleeping), *starting_for_the_warm_pool(starting))
    with_pool = replace(signals, replicas=(*signals.replicas, *pool))

    assert replica_need(rules_of(warm_pool=5), with_pool, NOW_S, None) == replica_need(
        rules_of(), signals, NOW_S, None
    )
    assert decided(rules_of(warm_pool=sleeping + starting), with_pool, 2).live == 2


@given(
    st.floats(0, 3e4),
    st.integers(0, 8),
    st.integers(0, 6),
    st.integers(0, 4),
    st.integers(0, 6),
    st.integers(6, 20),
    st.integers(0, 14),
    st.booleans(),
)
def test_the_maximum_counts_all_and_the_warm_pool_has_its_number_after_the_decision(
    per_s: float,
    awake: int,
    sleeping: int,
    starting: int,
    pool: int,
    most: int,
    quota: int,
    is_stale: bool,
) -> None:
    rules = rules_of(max_replicas=most, warm_pool=pool, gpu_types=(gpu_type(quota=quota),))
    replicas = (*warm(awake), *asleep(sleeping), *starting_for_the_warm_pool(starting))
    age_s = {"replicas": 9.0 if is_stale else 0.0}
    signals = signals_of(per_s, replicas, age_s=age_s)
    decision = decided(rules, signals, awake)
    woken = [one for one in decision.additions if one.wake_replica_id is not None]
    new = [one for one in decision.additions if one.wake_replica_id is None]
    slept = {one.replica_id for one in asleep(sleeping)} & set(decision.removals)
    left = sleeping + starting - len(woken) - len(slept) + sum(one.standby for one in new)

    assert decision.target + decision.standby <= most
    assert decision.standby <= min(pool, left)
    assert not slept & {one.wake_replica_id for one in woken}
    assert len(replicas) + len(new) <= max(quota, len(replicas))
    if not is_stale and not starting:
        assert left == decision.standby
    if is_stale:
        assert not slept
    if len([one for one in new if not one.standby]) > 0:
        assert len(woken) == sleeping + starting  # new ones join the group only after all of these


@given(st.integers(0, 6), st.integers(0, 6), st.integers(0, 6), st.integers(0, 6))
def test_a_decision_that_was_carried_out_is_not_repeated(
    count: int, sleeping: int, starting: int, pool: int
) -> None:
    rules = rules_of(warm_pool=pool)
    replicas = (*asleep(sleeping), *starting_for_the_warm_pool(starting))
    planned = plan_additions(rules, replicas, count, standby=pool).replicas
    woken = {one.wake_replica_id for one in planned}
    kept = tuple(one for one in replicas if one.replica_id not in woken)
    joined = tuple(replica(number) for number in range(count))
    refilled = tuple(
        replica(900 + number, ReplicaState.STARTING, standby=True)
        for number in range(sum(one.standby for one in planned))
    )

    after = plan_additions(rules, (*joined, *kept, *refilled), 0, standby=pool)
    assert after.replicas == ()


def test_a_wake_refills_the_warm_pool_by_a_replica_that_starts_asleep() -> None:
    decision = decided(rules_of(warm_pool=1), signals_of(700.0, asleep(1)), 0)

    first, second = decision.additions
    assert (decision.target, decision.standby, decision.asleep) == (1, 1, 1)
    assert (first.wake_replica_id, first.standby) == ("r0500", False)
    assert (second.wake_replica_id, second.standby) == (None, True)


def test_an_idle_pool_at_zero_keeps_its_warm_pool() -> None:
    decision = decided(rules_of(warm_pool=2), signals_of(0.0, asleep(2)), 0)

    assert (decision.target, decision.standby) == (0, 2)
    assert (decision.additions, decision.removals, decision.action) == ((), (), "hold")


def test_the_warm_pool_gives_way_at_the_maximum() -> None:
    rules = rules_of(max_replicas=3, warm_pool=2)
    decision = decided(rules, signals_of(10_000.0, (*warm(1), *asleep(2))), 1)

    assert (decision.target, decision.standby) == (3, 0)
    assert {one.wake_replica_id for one in decision.additions} == {"r0500", "r0501"}


def test_sleeping_replicas_beyond_a_smaller_warm_pool_go_and_awake_ones_stay() -> None:
    signals = signals_of(1500.0, (*warm(2), *asleep(3)))
    decision = decided(rules_of(warm_pool=1), signals, 2)

    assert decision.removals == ("r0502", "r0501")
    assert (decision.target, decision.standby) == (2, 1)


def test_a_replica_that_starts_for_the_warm_pool_is_woken_and_not_ordered_again() -> None:
    signals = signals_of(700.0, starting_for_the_warm_pool(1))
    decision = decided(rules_of(warm_pool=0), signals, 0)

    assert [one.wake_replica_id for one in decision.additions] == ["r0700"]


def test_a_quota_that_is_too_small_for_the_warm_pool_is_named() -> None:
    rules = rules_of(warm_pool=2, gpu_types=(gpu_type(quota=2),))
    decision = decided(rules, signals_of(700.0, warm(1)), 1)

    assert (decision.target, decision.standby) == (1, 1)
    (cut,) = [one for one in decision.withheld if one.standby]
    assert (cut.reason, cut.replicas) == ("quota", 2)


@pytest.mark.parametrize("state", AWAKE)
def test_only_standby_distinguishes_a_replica_that_starts_for_the_group(
    state: ReplicaState,
) -> None:
    decision = decided(rules_of(warm_pool=1), signals_of(700.0, (replica(1, state),)), 1)

    assert (decision.live, decision.asleep, len(decision.additions)) == (1, 0, 1)


@pytest.mark.parametrize("per_s", [400.0, 1200.0, 2600.0])
def test_a_constant_load_wakes_refills_and_does_not_flip(per_s: float) -> None:
    """In a closed loop with starts of 20 s: the pool settles with its warm pool full again."""
    rules = rules_of(warm_pool=2, gpu_types=(gpu_type(cold_start_s=20.0),), max_replicas=12)
    ready_s: dict[str, float] = {"s0": 0.0, "s1": 0.0}
    sleeping = {"s0", "s1"}
    history, targets = first_history(NOW_S, 0), []
    for second in range(900):
        now_s = NOW_S + second
        listed = tuple(
            ReplicaSignal(
                replica_id=name,
                state=state_of(at_s <= now_s, name in sleeping),
                gpu_type="l4",
                zone="",
                tokens_per_s=1000.0,
                standby=name in sleeping,
            )
            for name, at_s in ready_s.items()
        )
        decision, history = decide(rules, signals_of(per_s, listed, now_s), history, now_s)
        targets.append(decision.target)
        for number, one in enumerate(decision.additions):
            if one.wake_replica_id is not None:
                sleeping.discard(one.wake_replica_id)
                continue
            ready_s[f"{second}-{number}"] = now_s + 20.0
            sleeping |= {f"{second}-{number}"} if one.standby else set()
        for name in decision.removals:
            ready_s.pop(name)
            sleeping.discard(name)
        assert len(ready_s) <= 12

    assert len(set(targets[1:])) == 1
    assert len(sleeping) == 2
    assert len(ready_s) == targets[-1] + 2


def state_of(is_ready: bool, is_standby: bool) -> ReplicaState:
    if not is_ready:
        return ReplicaState.STARTING
    return ReplicaState.ASLEEP if is_standby else ReplicaState.WARM
