"""The rules by which one pool is scaled: bounds, SLO, hours, GPU types and their quota. Data.

They are what a scaling policy says, resolved for one pool: a throughput curve is one rate, at the
SLO, and costs and quota are those of a replica. Rules that contradict each other are refused with
InvalidScalingRulesError, so that no decision is made from them.
"""

import math
from typing import Final

from msgspec import Struct

from core.bulk_hours import InvalidBulkHoursError, parse_bulk_hours

POOL_REPLICAS_MAX: Final = 10_000
GPU_TYPES_MAX: Final = 8
SCHEDULES_MAX: Final = 16
ZONES_MAX: Final = 16
DURATION_MAX_S: Final = 2_592_000  # 30 days


class InvalidScalingRulesError(ValueError):
    """Rules contradict each other; the message names the field."""


class ReplicaType(Struct, frozen=True, kw_only=True):
    """A type of GPU on which the pool may run.

    A type without a name is a device that the policy does not describe: its rate is learned, and
    it may cost 0, which means that the cost is not known.
    """

    name: str
    tokens_per_s: float  # of one replica at the SLO, from the throughput curve
    cost_per_hour: float
    quota: int  # replicas of the type, on demand and spot, draining ones included
    zones: tuple[str, ...] = ("",)
    spot_cost_per_hour: float | None = None  # none: no spot
    cold_start_s: float = 120.0  # until p95 is measured

    @property
    def is_learned(self) -> bool:
        """Whether `tokens_per_s` is only where learning begins."""
        return not self.name


class ScheduledBounds(Struct, frozen=True, kw_only=True):
    """Other bounds in certain hours of the week."""

    hours: str  # as `Mon-Fri 08:00-18:00 Europe/Berlin` (core.bulk_hours)
    min_replicas: int
    max_replicas: int


class ScalingRules(Struct, frozen=True, kw_only=True):
    """How one pool is scaled."""

    min_replicas: int = 0  # in the group
    max_replicas: int  # in the group and in the warm pool
    gpu_types: tuple[ReplicaType, ...]
    schedule: tuple[ScheduledBounds, ...] = ()  # the first that is open counts
    utilisation: float = 0.8  # ρ: the part of a replica's rate that arrivals may use
    online_drain_s: float = 10.0  # T_on: in which the online backlog is to end
    bulk_drain_min_s: float = 60.0  # the shortest time that bulk backlog is given
    burst_factor: float = 1.0  # z: standard deviations of arrivals that are provided for
    warm_pool: int = 0  # replicas that sleep: loaded, out of the group, beyond the need
    stabilisation_s: float = 300.0  # whose highest need bounds reductions
    idle_s: float = 600.0  # T0: without work before the pool goes to zero
    spot_share: float = 0.0  # of the replicas, at most
    on_demand_fallback: bool = True  # on demand replaces spot that is unavailable
    budget_per_hour: float | None = None


class Bounds(Struct, frozen=True, kw_only=True):
    """The bounds that hold now."""

    min_replicas: int
    max_replicas: int
    scheduled: bool = False


def check_rules(rules: ScalingRules) -> None:
    """Raise InvalidScalingRulesError if a bound, cost or rate of the rules cannot be followed."""
    _require(1 <= len(rules.gpu_types) <= GPU_TYPES_MAX, f"gpu_types: 1 to {GPU_TYPES_MAX}")
    names = [one.name for one in rules.gpu_types]
    _require(len(set(names)) == len(names), "gpu_types: names must differ")
    for one in rules.gpu_types:
        _check_gpu_type(one)
    _require(len(rules.schedule) <= SCHEDULES_MAX, f"schedule: at most {SCHEDULES_MAX}")
    pairs = [(rules.min_replicas, rules.max_replicas)]
    pairs += [(one.min_replicas, one.max_replicas) for one in rules.schedule]
    for least, most in pairs:
        ordered = 0 <= least <= most <= POOL_REPLICAS_MAX
        _require(ordered, f"0 <= min_replicas <= max_replicas <= {POOL_REPLICAS_MAX}")
    for bounds in rules.schedule:
        try:
            parse_bulk_hours(bounds.hours)
        except InvalidBulkHoursError as error:
            raise InvalidScalingRulesError(f"schedule: {error}") from None
    _require(0.05 <= rules.utilisation <= 1, "utilisation: from 0.05 to 1")
    _require(0 <= rules.spot_share <= 1, "spot_share: from 0 to 1")
    _require(0 <= rules.burst_factor <= 10, "burst_factor: from 0 to 10")
    _require(0 <= rules.warm_pool <= rules.max_replicas, "warm_pool: from 0 to max_replicas")
    for name in ("online_drain_s", "bulk_drain_min_s"):
        _require(1 <= getattr(rules, name) <= DURATION_MAX_S, f"{name}: from 1 to {DURATION_MAX_S}")
    _require(0 <= rules.stabilisation_s <= 300, "stabilisation_s: from 0 to 300")
    _require(0 <= rules.idle_s <= DURATION_MAX_S, f"idle_s: from 0 to {DURATION_MAX_S}")
    if rules.budget_per_hour is not None:
        _require(_is_positive(rules.budget_per_hour), "budget_per_hour: above 0")


def _check_gpu_type(one: ReplicaType) -> None:
    _require(_is_positive(one.tokens_per_s), f"{one.name}.tokens_per_s: above 0")
    is_unknown = one.is_learned and one.cost_per_hour == 0
    _require(is_unknown or _is_positive(one.cost_per_hour), f"{one.name}.cost_per_hour: above 0")
    if one.spot_cost_per_hour is not None:
        _require(_is_positive(one.spot_cost_per_hour), f"{one.name}.spot_cost_per_hour: above 0")
    _require(0 <= one.quota <= POOL_REPLICAS_MAX, f"{one.name}.quota: 0 to {POOL_REPLICAS_MAX}")
    zones = len(one.zones) == len(set(one.zones)) and 1 <= len(one.zones) <= ZONES_MAX
    _require(zones, f"{one.name}.zones: 1 to {ZONES_MAX}, which differ")
    _require(0 <= one.cold_start_s <= 86_400, f"{one.name}.cold_start_s: from 0 to 86400")


def bounds_at(rules: ScalingRules, now_s: float, lead_s: float) -> Bounds:
    """Return the bounds that hold now.

    A higher minimum counts from `lead_s` before its hours, so that replicas are ready when they
    begin; the maximum that holds now is kept.
    """
    current = _bounds(rules, now_s)
    coming = _bounds(rules, now_s + lead_s)
    if coming.min_replicas <= current.min_replicas:
        return current
    return Bounds(
        min_replicas=min(coming.min_replicas, current.max_replicas),
        max_replicas=current.max_replicas,
        scheduled=True,
    )


def _bounds(rules: ScalingRules, at_s: float) -> Bounds:
    for one in rules.schedule:
        if parse_bulk_hours(one.hours).spans(at_s, at_s + 1e-3):
            return Bounds(
                min_replicas=one.min_replicas, max_replicas=one.max_replicas, scheduled=True
            )
    return Bounds(min_replicas=rules.min_replicas, max_replicas=rules.max_replicas)


def _is_positive(value: float) -> bool:
    return math.isfinite(value) and 1e-9 <= value <= 1e12


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InvalidScalingRulesError(message)
