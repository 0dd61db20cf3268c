"""Goal: quota, budget and spot share hold while types are swapped, and the right replica goes."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from autoscaler.policy.placement import cost_per_hour, plan_additions, plan_removals
from autoscaler.policy.scaling_rules import (
    InvalidScalingRulesError,
    ReplicaType,
    ScalingRules,
    ScheduledBounds,
    check_rules,
)
from autoscaler.policy.signals import ReplicaSignal, ReplicaState
from tests.support.scaling import gpu_type, replica, rules_of

ZONES = ("a", "b")
gpu_types = st.lists(
    st.builds(
        lambda rate, cost, spot, quota: {
            "tokens_per_s": rate,
            "cost_per_hour": cost,
            "spot_cost_per_hour": spot,
            "quota": quota,
            "zones": ZONES,
        },
        st.floats(100, 5000),
        st.floats(0.5, 10),
        st.none() | st.floats(0.1, 5),
        st.integers(0, 6),
    ),
    min_size=1,
    max_size=4,
).map(lambda rows: tuple(gpu_type(f"t{number}", **row) for number, row in enumerate(rows)))
policies = st.builds(
    lambda types, share, budget: rules_of(
        gpu_types=types, spot_share=share, budget_per_hour=budget
    ),
    gpu_types,
    st.floats(0, 1),
    st.none() | st.floats(1, 60),
)
existing = st.lists(
    st.tuples(
        st.sampled_from(ReplicaState),
        st.sampled_from(["t0", "t1", "old"]),
        st.sampled_from(ZONES),
        st.booleans(),
        st.floats(0, 100),
        st.booleans(),
    ),
    max_size=8,
).map(
    lambda rows: tuple(
        replica(
            number,
            state,
            gpu_type=name,
            zone=zone,
            spot=spot,
            load_tokens=load,
            has_suspects=suspects,
        )
        for number, (state, name, zone, spot, load, suspects) in enumerate(rows)
    )
)


@given(policies, existing, st.integers(0, 30))
def test_quota_budget_and_spot_share_hold(
    rules: ScalingRules, replicas: tuple[ReplicaSignal, ...], count: int
) -> None:
    additions = plan_additions(rules, replicas, count)
    ordered = [one for one in additions.replicas if one.wake_replica_id is None]
    added = tuple(
        replica(100 + number, gpu_type=one.gpu_type, zone=one.zone, spot=one.spot)
        for number, one in enumerate(ordered)
    )
    after = (*replicas, *added)
    quota = {one.name: one.quota for one in rules.gpu_types}

    for name, number in Counter(one.gpu_type for one in added).items():
        assert number + sum(one.gpu_type == name for one in replicas) <= quota[name]
    if added and rules.budget_per_hour is not None:
        assert cost_per_hour(rules, after) <= rules.budget_per_hour + 1e-6
    if any(one.spot for one in added):
        last = max(number for number, one in enumerate(after) if one.spot)
        spot = sum(one.spot for one in after[: last + 1])
        assert spot <= rules.spot_share * (last + 1) + 1e-9
    assert len(additions.replicas) <= count
    assert (len(additions.replicas) == count) == (additions.bound is None)


def test_additions_minimise_cost_per_token_and_swap_types_at_the_quota() -> None:
    fast = gpu_type("fast", tokens_per_s=4000.0, cost_per_hour=3.0, quota=2)
    slow = gpu_type("slow", tokens_per_s=1000.0, cost_per_hour=1.0, quota=1)
    additions = plan_additions(rules_of(gpu_types=(slow, fast)), (), 4)

    assert [one.gpu_type for one in additions.replicas] == ["fast", "fast", "slow"]
    assert additions.bound == "quota"


def test_spot_falls_back_to_demand_and_zones_are_spread() -> None:
    rules = rules_of(
        gpu_types=(gpu_type("t", spot_cost_per_hour=0.3, zones=ZONES),), spot_share=1.0
    )
    spot = plan_additions(rules, (), 4).replicas
    assert all(one.spot for one in spot)
    assert Counter(one.zone for one in spot) == {"a": 2, "b": 2}
    one_zone = plan_additions(rules, (), 2, {("t", "a")}).replicas
    assert [(one.zone, one.spot) for one in one_zone] == [("b", True), ("b", True)]
    none = plan_additions(rules, (), 2, {("t", "a"), ("t", "b")}).replicas
    assert [(one.zone, one.spot) for one in none] == [("a", False), ("b", False)]


def test_without_fallback_spot_that_is_unavailable_is_not_replaced() -> None:
    rules = rules_of(
        gpu_types=(gpu_type("t", spot_cost_per_hour=0.3),), spot_share=0.5, on_demand_fallback=False
    )
    both = plan_additions(rules, (), 4)
    without = plan_additions(rules, (), 4, {("t", "")})

    assert (sum(one.spot for one in both.replicas), both.bound) == (2, None)
    assert [one.spot for one in without.replicas] == [False, False]
    assert without.bound == "spot"


def test_sleeping_replicas_are_woken_first_and_cost_no_quota() -> None:
    rules = rules_of(gpu_types=(gpu_type(quota=1),))
    additions = plan_additions(rules, (replica(7, ReplicaState.ASLEEP),), 2)

    assert [one.wake_replica_id for one in additions.replicas] == ["r0007"]
    assert additions.bound == "quota"


def test_a_budget_that_is_reached_is_named() -> None:
    additions = plan_additions(rules_of(budget_per_hour=2.5), (replica(1),), 5)

    assert (len(additions.replicas), additions.bound) == (1, "budget")


@given(policies, existing, st.integers(0, 10))
def test_the_least_loaded_go_first_and_never_one_with_suspects(
    rules: ScalingRules, replicas: tuple[ReplicaSignal, ...], count: int
) -> None:
    by_id = {one.replica_id: one for one in replicas}
    removed = [by_id[name] for name in plan_removals(rules, replicas, count)]
    removable = [one for one in replicas if one.state is ReplicaState.WARM and not one.has_suspects]
    kept = [one for one in removable if one not in removed]

    assert len(removed) == min(count, len(removable))
    assert all(one in removable for one in removed)
    assert max((one.load_tokens for one in removed), default=0.0) <= min(
        (one.load_tokens for one in kept), default=math.inf
    )


@pytest.mark.parametrize(
    ("rules", "field"),
    [
        (rules_of(min_replicas=3, max_replicas=2), "min_replicas"),
        (rules_of(gpu_types=()), "gpu_types"),
        (rules_of(gpu_types=(gpu_type(), gpu_type())), "names"),
        (rules_of(gpu_types=(gpu_type(cost_per_hour=0.0),)), "cost_per_hour"),
        (rules_of(gpu_types=(gpu_type(spot_cost_per_hour=-1.0),)), "spot_cost_per_hour"),
        (rules_of(gpu_types=(gpu_type(tokens_per_s=math.nan),)), "tokens_per_s"),
        (rules_of(gpu_types=(gpu_type(zones=()),)), "zones"),
        (rules_of(utilisation=0.0), "utilisation"),
        (rules_of(spot_share=1.1), "spot_share"),
        (rules_of(budget_per_hour=math.inf), "budget_per_hour"),
        (rules_of(online_drain_s=math.nan), "online_drain_s"),
        (
            rules_of(schedule=(ScheduledBounds(hours="Mon", min_replicas=0, max_replicas=1),)),
            "schedule",
        ),
    ],
)
def test_rules_that_contradict_are_refused_by_field(rules: ScalingRules, field: str) -> None:
    check_rules(rules_of())
    with pytest.raises(InvalidScalingRulesError, match=field):
        check_rules(rules)


@given(gpu_types)
def test_policies_of_these_tests_are_valid(types: tuple[ReplicaType, ...]) -> None:
    check_rules(rules_of(gpu_types=types))


@given(gpu_types, gpu_types, st.lists(st.integers(0, 12), min_size=1, max_size=8))
def test_quota_is_kept_while_types_are_swapped(
    before: tuple[ReplicaType, ...], after: tuple[ReplicaType, ...], counts: list[int]
) -> None:
    """Replicas of the old policy drain while those of the new one start: both have their GPUs."""
    replicas: tuple[ReplicaSignal, ...] = ()
    for number, count in enumerate(counts):
        types = before if number < len(counts) // 2 else after
        rules = rules_of(gpu_types=types, max_replicas=20)
        live = [one for one in replicas if one.state is not ReplicaState.DRAINING]
        removed = plan_removals(rules, live, len(live) - count)
        draining = [one for one in replicas if one.replica_id in removed]
        additions = plan_additions(rules, replicas, count - len(live)).replicas
        ordered = tuple(
            replica(100 * number + place, gpu_type=one.gpu_type, zone=one.zone, spot=one.spot)
            for place, one in enumerate(additions)
        )
        kept = (
            replace(one, state=ReplicaState.DRAINING) if one in draining else one
            for one in replicas
            if one.state is not ReplicaState.DRAINING or number % 2
        )
        quota = {one.name: one.quota for one in types}
        for name in {one.gpu_type for one in ordered}:
            assert sum(one.gpu_type == name for one in (*replicas, *ordered)) <= quota[name]
        replicas = (*kept, *ordered)
