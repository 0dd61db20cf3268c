"""What the policy of a pool says, as the rules by which decisions are made. Pure.

A file counts GPUs and has a curve for each type; the rules count replicas and have one rate. What
neither knows is said here: the rate at the SLO, and a device that the file does not describe.
"""

import math
from typing import Final

from autoscaler.policies.policies import Policies, entry_bounds
from autoscaler.policies.pool_policy import Curve, GpuType, PoolPolicy
from autoscaler.policy.role_need import Role, RoleRules, check_role_rules
from autoscaler.policy.scaling_rules import (
    POOL_REPLICAS_MAX,
    ReplicaType,
    ScalingRules,
    ScheduledBounds,
    check_rules,
)

UNKNOWN_TOKENS_PER_S: Final = 1000.0
"""Tokens/s of a replica on a device that the file does not describe, until one is measured."""

DRAIN_MIN_S: Final = 1.0
"""Shortest time in which a backlog is worked off: the backlog is known once a second."""

_RATE_MIN: Final = 1e-6
_COST_MIN: Final = 1e-6


def rules_of(policies: Policies, pool: str) -> ScalingRules:
    """Return the rules of a pool, with whole quotas: `QuotaShares` takes what other pools have.

    `online_drain_s` is `queue_s` and not longer: with the time of a cold start instead, a backlog
    would take that time once more after the start, which `queue_s` rules out.
    """
    policy = policies.policy_of(pool)
    types = tuple(
        _replica_type(name, policies.gpu_types[name], policies.curve_of(pool, name), policy)
        for name in policy.gpu_types
    )
    rules = ScalingRules(
        min_replicas=policy.replicas_min,
        max_replicas=policy.replicas_max,
        gpu_types=types or (_undescribed_type(policy),),
        schedule=_schedule(policy),
        utilisation=policy.utilization,
        online_drain_s=max(DRAIN_MIN_S, policy.queue_s),
        warm_pool=policy.warm_replicas,
        stabilisation_s=policy.stabilization_s,
        idle_s=policy.idle_s,
        spot_share=policy.spot_share,
        on_demand_fallback=policy.on_demand_fallback,
        budget_per_hour=_cost(policy.budget_per_hour),
    )
    check_rules(rules)
    return rules


def role_rules_of(policies: Policies, role: Role) -> RoleRules | None:
    """Return the rules of a role; None: the file has no table for it, so it is not scaled."""
    policy = policies.roles.get(role)
    if policy is None:
        return None
    rules = RoleRules(
        role=role,
        min_replicas=policy.replicas_min,
        max_replicas=policy.replicas_max,
        target_per_s=policy.target_per_s,
        drain_s=policy.drain_s,
    )
    check_role_rules(rules)
    return rules


def rate_at_slo(curve: Curve) -> float:
    """Return the tokens/s that are planned for a replica: the highest rate of its curve.

    A curve does not say how long the first token takes, so the points do not tell which of them
    keeps `first_token_s`. An operator leaves out the points that break it. `utilization` is not in
    this rate; the need divides arrivals by it.
    """
    return max(_RATE_MIN, *(rate for _, rate in curve))


def _replica_type(name: str, gpu: GpuType, curve: Curve, policy: PoolPolicy) -> ReplicaType:
    gpus = policy.gpus_per_replica
    spot = gpu.spot_cost_per_hour
    return ReplicaType(
        name=name,
        tokens_per_s=rate_at_slo(curve),
        cost_per_hour=max(_COST_MIN, gpu.cost_per_hour * gpus),
        quota=_quota(gpu.quota, gpus),
        zones=policy.zones or ("",),
        spot_cost_per_hour=None if spot is None else _cost(spot * gpus),
    )


def _undescribed_type(policy: PoolPolicy) -> ReplicaType:
    """Return the type of a pool without `gpu_types`: its rate is learned, its cost not known."""
    return ReplicaType(
        name="",
        tokens_per_s=UNKNOWN_TOKENS_PER_S,
        cost_per_hour=0.0,
        quota=POOL_REPLICAS_MAX,
        zones=policy.zones or ("",),
    )


def _quota(quota: int | None, gpus_per_replica: int) -> int:
    if quota is None:
        return POOL_REPLICAS_MAX
    return min(POOL_REPLICAS_MAX, quota // gpus_per_replica)


def _schedule(policy: PoolPolicy) -> tuple[ScheduledBounds, ...]:
    found = []
    for entry in policy.schedule:
        bounds = entry_bounds(policy, entry)
        found.append(
            ScheduledBounds(
                hours=entry.hours,
                min_replicas=bounds.replicas_min,
                max_replicas=bounds.replicas_max,
            )
        )
    return tuple(found)


def _cost(cost: float | None) -> float | None:
    return None if cost is None or not math.isfinite(cost) else max(_COST_MIN, cost)
