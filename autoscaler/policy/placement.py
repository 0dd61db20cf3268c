"""Which GPU types, zones and price a pool adds, and which replicas it removes. Pure.

Additions: replicas of the warm pool are woken first, and new ones refill it. Then the option with
the lowest cost per token, by the throughput curve of its type; spot up to the spot share, on demand
where spot is not available; in the zone with the fewest replicas of the pool. Replicas in each
state count against quota and budget: a draining or sleeping replica still has its GPU.

Removals: the replica with the least work first, so that little is requeued; never one with suspect
items, whose removal would spread them to other replicas; never one that is starting. Of the warm
pool, those go that sleep beyond its number.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, Literal, NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from autoscaler.policy.scaling_rules import POOL_REPLICAS_MAX, ReplicaType, ScalingRules
from autoscaler.policy.signals import ReplicaSignal, ReplicaState, standby_of

Offer: TypeAlias = tuple[str, str]
"""GPU type and zone."""

AdditionBound: TypeAlias = Literal["quota", "budget", "spot"]
"""Why less is added than asked; `spot`: on demand must not replace spot that is unavailable."""

_COST_ROUNDING: Final = 1e-9
_SHARE_ROUNDING: Final = 1e-9
_BOUND_ORDER: Final[tuple[AdditionBound, ...]] = ("budget", "spot")


class Addition(Struct, frozen=True, kw_only=True):
    """One replica to add, or to wake."""

    gpu_type: str
    zone: str
    spot: bool = False
    wake_replica_id: str | None = None
    standby: bool = False  # it starts out of the group, for the warm pool
    cost_per_hour: float = 0.0  # that it adds; 0: a wake, or not known


class Additions(Struct, frozen=True, kw_only=True):
    """What is added, and the bounds for which it is less than asked."""

    replicas: tuple[Addition, ...] = ()
    bound: AdditionBound | None = None  # of the replicas of the group
    standby_bound: AdditionBound | None = None  # of those of the warm pool

    @property
    def awake(self) -> int:
        """How many join the group."""
        return sum(not one.standby for one in self.replicas)


def plan_additions(
    rules: ScalingRules,
    replicas: Sequence[ReplicaSignal],
    count: int,
    unavailable_spot: AbstractSet[Offer] = frozenset(),
    standby: int = 0,
) -> Additions:
    """Return up to `count` additions within the quota of each type and the budget per hour.

    Further ones refill the warm pool, so that `standby` replicas are in it after the wakes.
    `unavailable_spot` are offers whose orders failed recently, or whose replicas got a notice.
    """
    warm_pool = _wake_order(rules, replicas)
    chosen = [_wake(one) for one in warm_pool[: max(0, count)]]
    refill = max(0, standby - (len(warm_pool) - len(chosen)))
    ordered = max(0, count - len(chosen))
    usage = _Usage(rules, replicas, ordered + refill, unavailable_spot)
    added, bound = usage.add_up_to(ordered)
    refilled, standby_bound = usage.add_up_to(refill)
    sleeping = (replace(one, standby=True) for one in refilled)
    return Additions(
        replicas=(*chosen, *added, *sleeping), bound=bound, standby_bound=standby_bound
    )


def plan_removals(
    rules: ScalingRules,
    replicas: Sequence[ReplicaSignal],
    count: int,
    *,
    with_starting: bool = False,
) -> tuple[str, ...]:
    """Return the ids of up to `count` replicas to drain, the least loaded first.

    Of equal load, the most expensive goes first, then one of the zone with the most replicas.
    `with_starting`: those that start, of which some may be ordered and not seen, go before all.
    """
    if count <= 0:
        return ()
    costs = {one.name: one for one in rules.gpu_types}
    crowd = Counter(one.zone for one in replicas)
    removable = [one for one in replicas if one.state is ReplicaState.WARM and not one.has_suspects]
    if with_starting:
        starting = (one for one in replicas if one.state is ReplicaState.STARTING)
        removable += [one for one in starting if not (one.standby or one.has_suspects)]
    removable.sort(
        key=lambda one: (
            one.state is ReplicaState.WARM,
            one.load_tokens,
            -_cost(rules, costs.get(one.gpu_type), one.spot),
            -crowd[one.zone],
            one.replica_id,
        )
    )
    return tuple(one.replica_id for one in removable[:count])


def plan_standby_removals(
    rules: ScalingRules, replicas: Sequence[ReplicaSignal], count: int, woken: AbstractSet[str]
) -> tuple[str, ...]:
    """Return the ids of up to `count` sleeping replicas to end: the last ones to be woken."""
    kept = [one for one in _wake_order(rules, replicas) if one.replica_id not in woken]
    sleeping = [one for one in kept if one.state is ReplicaState.ASLEEP]
    return tuple(one.replica_id for one in reversed(sleeping))[: max(0, count)]


def cost_per_hour(rules: ScalingRules, replicas: Sequence[ReplicaSignal]) -> float:
    """Return what all replicas cost, draining and sleeping ones included."""
    types = {one.name: one for one in rules.gpu_types}
    return sum(_cost(rules, types.get(one.gpu_type), one.spot) for one in replicas)


class _Option(NamedTuple):
    """A type on demand or on spot; options sort by cost per token, then by cost."""

    cost_per_token: float
    cost: float
    number: int  # of the type in the policy
    is_spot: bool
    name: str
    quota: int
    zones: tuple[str, ...]


class _Usage:
    """Quota, budget, spot share and zones, while additions are chosen."""

    def __init__(
        self,
        rules: ScalingRules,
        replicas: Sequence[ReplicaSignal],
        count: int,
        unavailable_spot: AbstractSet[Offer],
    ) -> None:
        self._rules = rules
        self._options = sorted(_options(rules, unavailable_spot))
        self._by_type = Counter(one.gpu_type for one in replicas)
        self._by_zone = Counter(one.zone for one in replicas)
        self._total = len(replicas)
        self._spot = sum(one.spot for one in replicas)
        self._on_demand_max = _on_demand_max(rules, len(replicas) + max(0, count))
        self._cost = cost_per_hour(rules, replicas)
        self.bound: AdditionBound = "quota"

    def add_up_to(self, count: int) -> tuple[list[Addition], AdditionBound | None]:
        """Count the cheapest options; return them, and the bound if they are less than `count`."""
        chosen: list[Addition] = []
        while len(chosen) < count:
            option = self.cheapest()
            if option is None:
                return chosen, self.bound
            chosen.append(self.add(option))
        return chosen, None

    def cheapest(self) -> _Option | None:
        """Return the cheapest option within the bounds, or none: then `bound` says why.

        An option that the budget alone excluded comes first, then one that is not spot.
        """
        budget = self._rules.budget_per_hour
        share = self._rules.spot_share * (self._total + 1)
        is_spot_allowed = self._spot + 1 <= share + _SHARE_ROUNDING
        is_on_demand_allowed = self._total - self._spot < self._on_demand_max
        bounds: set[AdditionBound] = set()
        for option in self._options:
            if self._by_type[option.name] >= option.quota:
                continue
            if option.is_spot and not is_spot_allowed:
                continue
            if not option.is_spot and not is_on_demand_allowed:
                bounds.add("spot")
                continue
            if budget is not None and self._cost + option.cost > budget + _COST_ROUNDING:
                bounds.add("budget")
                continue
            return option
        self.bound = next((one for one in _BOUND_ORDER if one in bounds), "quota")
        return None

    def add(self, option: _Option) -> Addition:
        """Count a replica of the option, in the zone with the fewest replicas."""
        zone = min(option.zones, key=lambda name: (self._by_zone[name], name))
        self._by_type[option.name] += 1
        self._by_zone[zone] += 1
        self._total += 1
        self._spot += option.is_spot
        self._cost += option.cost
        return Addition(
            gpu_type=option.name, zone=zone, spot=option.is_spot, cost_per_hour=option.cost
        )


def _on_demand_max(rules: ScalingRules, total: int) -> int:
    """Return how many of `total` replicas may be on demand: without fallback, not the spot ones."""
    if rules.on_demand_fallback:
        return POOL_REPLICAS_MAX
    return total - math.floor(rules.spot_share * total + _SHARE_ROUNDING)


def _options(rules: ScalingRules, unavailable_spot: AbstractSet[Offer]) -> Iterator[_Option]:
    for number, one in enumerate(rules.gpu_types):
        for is_spot in (True, False):
            zones = _spot_zones(one, unavailable_spot) if is_spot else one.zones
            cost = _cost(rules, one, is_spot)
            if zones:
                per_token = cost / one.tokens_per_s
                yield _Option(per_token, cost, number, is_spot, one.name, one.quota, zones)


def _wake(one: ReplicaSignal) -> Addition:
    return Addition(
        gpu_type=one.gpu_type, zone=one.zone, spot=one.spot, wake_replica_id=one.replica_id
    )


def _wake_order(rules: ScalingRules, replicas: Sequence[ReplicaSignal]) -> list[ReplicaSignal]:
    """Return the warm pool: those that sleep before those that start for it, then by cost."""
    types = {one.name: one for one in rules.gpu_types}
    return sorted(
        standby_of(replicas),
        key=lambda one: (
            one.state is not ReplicaState.ASLEEP,
            _cost(rules, types.get(one.gpu_type), one.spot),
            one.replica_id,
        ),
    )


def _spot_zones(one: ReplicaType, unavailable: AbstractSet[Offer]) -> tuple[str, ...]:
    if one.spot_cost_per_hour is None:
        return ()
    return tuple(zone for zone in one.zones if (one.name, zone) not in unavailable)


def _cost(rules: ScalingRules, one: ReplicaType | None, is_spot: bool) -> float:
    """Return the cost per hour; a type that the rules do not list costs as the dearest one."""
    if one is None:
        return max(known.cost_per_hour for known in rules.gpu_types)
    if is_spot and one.spot_cost_per_hour is not None:
        return one.spot_cost_per_hour
    return one.cost_per_hour
