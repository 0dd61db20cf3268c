"""Goal: each policy that a file may hold gives rules that can be followed, in replicas.

Costs and quotas of a file count GPUs, those of the rules replicas.
"""

from typing import Any

import pytest
from hypothesis import given
from msgspec.structs import replace

from autoscaler.policies.policies import Policies
from autoscaler.policies.policy_reader import InvalidPoliciesError, read_policies
from autoscaler.policies.policy_rules import UNKNOWN_TOKENS_PER_S, rules_of
from autoscaler.policies.pool_policy import GpuType, PoolPolicy, ScheduleEntry
from autoscaler.policy.replica_need import replica_need
from autoscaler.policy.scaling_rules import POOL_REPLICAS_MAX, check_rules
from autoscaler.policy.signals import ReplicaState
from tests.property.test_scaling_policies import all_policies
from tests.support.scaling import NOW_S, replica, signals_of

GPU = GpuType(
    memory_gib=24.0,
    cost_per_hour=0.8,
    spot_cost_per_hour=0.3,
    quota=7,
    throughput=((1, 30.0), (8, 210.0), (32, 520.0)),
)


def policies_of(**fields: Any) -> Policies:
    given_fields: dict[str, Any] = {"gpu_types": ("l4",)} | fields
    return Policies({"l4": GPU}, PoolPolicy(), {"chat": PoolPolicy(**given_fields)})


@given(all_policies())
def test_each_valid_policy_gives_rules_that_can_be_followed(policies: Policies) -> None:
    for pool in policies.pools:
        check_rules(rules_of(policies, pool.replace("*", "x")))


def test_smallest_and_largest_values_of_a_file_give_valid_rules() -> None:
    for value in (0.01, 2_592_000.0):
        check_rules(rules_of(policies_of(queue_s=value, idle_s=value), "chat"))
    cheap = replace(GPU, cost_per_hour=1e-300, throughput=((1, 1e-300),), spot_cost_per_hour=1e-300)
    policies = Policies({"l4": cheap}, PoolPolicy(), {})
    check_rules(rules_of(replace(policies, defaults=PoolPolicy(gpu_types=("l4",))), "any"))


def test_costs_and_quota_are_those_of_replicas() -> None:
    (one,) = rules_of(policies_of(gpus_per_replica=2, zones=("a", "b")), "chat").gpu_types
    (nowhere,) = rules_of(policies_of(gpus_per_replica=9), "chat").gpu_types

    assert (one.cost_per_hour, one.spot_cost_per_hour, one.quota) == (1.6, 0.6, 3)
    assert (one.tokens_per_s, one.zones) == (520.0, ("a", "b"))
    assert (nowhere.quota, nowhere.zones) == (0, ("",))


def test_a_schedule_has_the_other_bound_of_the_pool() -> None:
    entry = ScheduleEntry("Mon-Fri 08:00-18:00 UTC", replicas_min=2)
    rules = rules_of(policies_of(replicas_max=5, schedule=(entry,), warm_replicas=1), "chat")

    (bounds,) = rules.schedule
    assert (bounds.min_replicas, bounds.max_replicas) == (2, 5)
    assert rules.warm_pool == 1


def test_a_device_that_is_not_described_is_learned_and_costs_nothing_known() -> None:
    rules = rules_of(Policies({}, PoolPolicy(), {}), "any")
    (one,) = rules.gpu_types
    measured = signals_of(800.0, (replica(1, gpu_type="", tokens_per_s=40_000.0),))
    starting = signals_of(800.0, (replica(1, ReplicaState.STARTING, gpu_type=""),))

    assert (one.name, one.cost_per_hour, one.quota) == ("", 0.0, POOL_REPLICAS_MAX)
    first = replica_need(rules, starting, NOW_S, None)
    learned = replica_need(rules, measured, NOW_S, first)
    kept = replica_need(rules, signals_of(800.0), NOW_S, learned)
    assert first.replica_tokens_per_s == UNKNOWN_TOKENS_PER_S
    assert learned.replica_tokens_per_s == kept.replica_tokens_per_s == 40_000.0


@pytest.mark.parametrize("field", ["gpu_types", "zones", "schedule"])
def test_more_than_the_rules_hold_is_refused_by_field(field: str) -> None:
    most = {"gpu_types": 8, "zones": 16, "schedule": 16}[field]

    def problems(count: int) -> tuple[str, ...]:
        names = [f'"l{number}"' for number in range(count)]
        entries = ['{hours = "Mon 08:00-09:00 UTC", replicas_max = 2}'] * count
        types = "".join(
            f"[gpu_types.{name}]\nmemory_gib = 1\ncost_per_hour = 1\nthroughput = [[1, 1]]\n"
            for name in names
        )
        values = ",\n".join(entries if field == "schedule" else names)
        text = f"{types if field == 'gpu_types' else ''}[pools.a]\n{field} = [{values}]\n"
        try:
            read_policies(text.encode(), "scaling.toml")
        except InvalidPoliciesError as error:
            return error.problems
        return ()

    assert problems(most) == ()
    (problem,) = problems(most + 1)
    assert problem.startswith(f"scaling.toml: [pools.a] {field}: ")
    assert f"<= {most}" in problem


@pytest.mark.parametrize("pool", ["chat", "other"])
def test_rules_carry_what_the_policy_says(pool: str) -> None:
    policies = policies_of(queue_s=3.0, spot_share=0.5, on_demand_fallback=False, utilization=0.9)
    rules, policy = rules_of(policies, pool), policies.policy_of(pool)

    assert rules.online_drain_s == policy.queue_s
    assert rules.spot_share == policy.spot_share
    assert rules.on_demand_fallback == policy.on_demand_fallback
    assert rules.utilisation == policy.utilization
    assert rules.idle_s == policy.idle_s
