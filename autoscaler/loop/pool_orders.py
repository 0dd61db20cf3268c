"""From a decision to the absolute numbers of an order, the warm pool included. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct

from autoscaler.actuators.actuator import KindCount, PoolOrder
from autoscaler.loop.fleet import Kind, count_kinds, kind_of
from autoscaler.policy.placement import Addition
from autoscaler.policy.scaling_decision import ScalingDecision
from autoscaler.policy.signals import ReplicaSignal


class PoolPlan(Struct, frozen=True, kw_only=True):
    """The replicas that a pool is to have after a decision."""

    kinds: Counter[Kind]
    additions: tuple[Addition, ...]  # those of the warm pool included
    removals: tuple[str, ...]
    standby: int


def plan_order(
    decision: ScalingDecision,
    replicas: Sequence[ReplicaSignal],
    stuck: Mapping[Kind, int] = {},
) -> PoolPlan:
    """Return what to order: existing replicas, plus additions, less removals.

    One of a kind with `stuck` replicas, which are to end, is added once they have ended.
    """
    held, additions = Counter(stuck), []
    for one in decision.additions:
        if one.wake_replica_id is None and held[kind_of(one)] > 0:
            held[kind_of(one)] -= 1
        else:
            additions.append(one)
    removals = set(decision.removals)
    kinds = count_kinds(one for one in replicas if one.replica_id not in removals)
    kinds.update(kind_of(one) for one in additions if one.wake_replica_id is None)
    return PoolPlan(
        kinds=kinds,
        additions=tuple(additions),
        removals=decision.removals,
        standby=decision.standby,
    )


def pool_order(
    pool: str, plan_kinds: Counter[Kind], standby: int, removals: Sequence[str]
) -> PoolOrder:
    """Return the order without epoch and sequence, by which orders are compared."""
    return PoolOrder(
        pool=pool,
        epoch=0,
        sequence=0,
        kinds=kind_counts(plan_kinds),
        standby=standby,
        removals=tuple(removals),
    )


def kind_counts(kinds: Counter[Kind]) -> tuple[KindCount, ...]:
    """Return the kinds that have replicas, in the words of actuators."""
    return tuple(
        KindCount(replicas=count, **kind._asdict())
        for kind, count in sorted(kinds.items())
        if count > 0
    )
