"""From a decision to the absolute numbers of an order, the warm pool included. Pure."""

from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from msgspec import Struct
from msgspec.structs import replace

from autoscaler.actuators.actuator import KindCount, PoolOrder
from autoscaler.loop.fleet import Kind, count_kinds, kind_of
from autoscaler.policy.placement import Addition, Offer, plan_additions
from autoscaler.policy.scaling_decision import ScalingDecision
from autoscaler.policy.scaling_rules import ScalingRules
from autoscaler.policy.signals import ReplicaSignal, ReplicaState


class PoolPlan(Struct, frozen=True, kw_only=True):
    """The replicas that a pool is to have after a decision."""

    kinds: Counter[Kind]
    additions: tuple[Addition, ...]  # those of the warm pool included
    removals: tuple[str, ...]
    standby: int


def plan_order(
    rules: ScalingRules,
    decision: ScalingDecision,
    replicas: Sequence[ReplicaSignal],
    unavailable_spot: AbstractSet[Offer] = frozenset(),
) -> PoolPlan:
    """Return what to order: existing replicas, plus additions, less removals.

    `rules.warm_pool` are the replicas that are to be asleep; together with the target they are at
    most the maximum. The warm pool is refilled when replicas of it are woken, within quota and
    budget, and reduced only while no input is stale.
    """
    woken = {one.wake_replica_id for one in decision.additions}
    removals = set(decision.removals)
    asleep = [
        one for one in replicas if one.state is ReplicaState.ASLEEP and one.replica_id not in woken
    ]
    wanted = max(0, min(rules.warm_pool, decision.bounds.max_replicas - decision.target))
    refill: tuple[Addition, ...] = ()
    if len(asleep) < wanted:
        refill = _refill(rules, decision, replicas, wanted - len(asleep), unavailable_spot)
    elif not decision.need.stale:
        spare = sorted(asleep, key=lambda one: one.replica_id)[wanted:]
        removals |= {one.replica_id for one in spare}
        asleep = asleep[: len(asleep) - len(spare)]
    additions = (*decision.additions, *refill)
    kinds = count_kinds(one for one in replicas if one.replica_id not in removals)
    kinds.update(kind_of(one) for one in additions if one.wake_replica_id is None)
    standby = len(asleep) + len(refill)
    return PoolPlan(
        kinds=kinds, additions=additions, removals=tuple(sorted(removals)), standby=standby
    )


def pool_order(
    pool: str, plan_kinds: Counter[Kind], standby: int, removals: Sequence[str]
) -> PoolOrder:
    """Return the order without epoch and sequence, by which orders are compared."""
    kinds = tuple(
        KindCount(replicas=count, **kind._asdict())
        for kind, count in sorted(plan_kinds.items())
        if count > 0
    )
    return PoolOrder(
        pool=pool, epoch=0, sequence=0, kinds=kinds, standby=standby, removals=tuple(removals)
    )


def _refill(
    rules: ScalingRules,
    decision: ScalingDecision,
    replicas: Sequence[ReplicaSignal],
    count: int,
    unavailable_spot: AbstractSet[Offer],
) -> tuple[Addition, ...]:
    # As draining ones, sleeping replicas count for quota and budget and are not woken.
    counted = [replace(one, state=ReplicaState.DRAINING) for one in replicas]
    counted += [
        ReplicaSignal(
            replica_id="",
            state=ReplicaState.STARTING,
            gpu_type=one.gpu_type,
            zone=one.zone,
            spot=one.spot,
        )
        for one in decision.additions
        if one.wake_replica_id is None
    ]
    return plan_additions(rules, counted, count, unavailable_spot).replicas
