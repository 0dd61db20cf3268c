"""Compares the fields of scaling policies with each other. Pure.

Each check yields the field and a sentence for each problem that it finds.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import TypeAlias

from autoscaler.actuators.actuator_tables import (
    ActuatorTable,
    EmbeddedTable,
    KedaTable,
    KubernetesTable,
    WebhookTable,
)
from autoscaler.actuators.safe_urls import url_problem
from autoscaler.policies.policies import ReplicaBounds, entry_bounds
from autoscaler.policies.pool_policy import Curve, GpuType, PolicyMode, PoolPolicy, RolePolicy
from autoscaler.policy.role_need import ROLE_PARTITIONS, Role
from core.bulk_hours import InvalidBulkHoursError, parse_bulk_hours

FieldProblem: TypeAlias = tuple[str, str]
"""The field, and a sentence that says what is wrong with it."""


def check_gpu_type(gpu_type: GpuType) -> Iterator[FieldProblem]:
    """Yield what is wrong with a GPU type."""
    spot, cost = gpu_type.spot_cost_per_hour, gpu_type.cost_per_hour
    if spot is not None and spot > cost:
        yield "spot_cost_per_hour", f"{spot:g} is above cost_per_hour {cost:g}."
    yield from _check_curve("throughput", gpu_type.throughput)


def check_policy(policy: PoolPolicy, gpu_types: Mapping[str, GpuType]) -> Iterator[FieldProblem]:
    """Yield what is wrong with the policy of a pool, its defaults included."""
    yield from _check_bounds(policy)
    yield from _check_names(policy, gpu_types)
    for name, curve in policy.throughput.items():
        if name not in gpu_types:
            yield f"throughput.{name}", f"The file has no table gpu_types.{name}."
        yield from _check_curve(f"throughput.{name}", curve)
    types = [gpu_types[name] for name in dict.fromkeys(policy.gpu_types) if name in gpu_types]
    if len(types) == len(set(policy.gpu_types)):  # else names are missing, which is said above
        yield from _check_capacity(policy, types)


def check_role(name: str, policy: RolePolicy) -> Iterator[FieldProblem]:
    """Yield what is wrong with the policy of a role."""
    fewest, most = policy.replicas_min, policy.replicas_max
    partitions = ROLE_PARTITIONS.get(Role(name))
    if fewest > most:
        yield "replicas_min", f"{fewest} is above replicas_max {most}."
    if partitions is not None and most > partitions:
        yield "replicas_max", f"{most} is above the {partitions} partitions that {name} reads."


def check_pool_actuator(
    policy: PoolPolicy | RolePolicy, actuators: Mapping[str, ActuatorTable]
) -> Iterator[FieldProblem]:
    """Yield what is wrong with the actuator of a pool, its defaults included, or of a role."""
    if policy.actuator is not None and policy.actuator not in actuators:
        yield "actuator", f"The file has no table actuators.{policy.actuator}."
    elif policy.actuator is None and policy.mode is PolicyMode.ACTIVE and len(actuators) > 1:
        what = "role" if isinstance(policy, RolePolicy) else "pool"
        yield (
            "actuator",
            f"The file has {len(actuators)} actuators, and an active {what} names one.",
        )
    only = next(iter(actuators), None) if len(actuators) == 1 else None
    table = actuators.get(policy.actuator or only or "")
    starts_warm = isinstance(table, KubernetesTable | KedaTable) and not table.standby
    if isinstance(policy, PoolPolicy) and policy.warm_replicas and starts_warm:
        yield (
            "warm_replicas",
            "Replicas of this actuator do not start in standby. Start all of them with "
            "MILLRACE_GPU_STANDBY=true and say standby = true in its table.",
        )


def check_role_actuator(
    policy: RolePolicy, actuators: Mapping[str, ActuatorTable]
) -> Iterator[FieldProblem]:
    """Yield what is wrong with the actuator of a role, which `embedded` cannot be."""
    yield from check_pool_actuator(policy, actuators)
    only = next(iter(actuators)) if len(actuators) == 1 else None
    name = policy.actuator or only
    if isinstance(actuators.get(name or ""), EmbeddedTable):
        yield "actuator", f"{name} is of kind embedded, which runs pools and no roles."
    elif not actuators and policy.actuator is None and policy.mode is PolicyMode.ACTIVE:
        yield "actuator", "The file has no actuators, and an active role needs one."


def check_actuators(actuators: Mapping[str, ActuatorTable]) -> Iterator[FieldProblem]:
    """Yield what is wrong with the actuators of a file."""
    for kind in (EmbeddedTable, KedaTable):  # each is one server of the process
        if sum(isinstance(table, kind) for table in actuators.values()) > 1:
            yield "", f"The file has several tables of kind {kind.__struct_config__.tag}."
    for name, table in actuators.items():
        if isinstance(table, WebhookTable) and (problem := url_problem(table.url)):
            yield f"{name}.url", problem


def lowest_cost_per_hour(replicas: int, policy: PoolPolicy, gpu_types: Iterable[GpuType]) -> float:
    """Return the least that replicas of a pool can cost in an hour: the cheapest of its types.

    As many as `spot_share` allows run on spot GPUs. Quotas are not regarded.
    """
    on_demand = min(one.cost_per_hour for one in gpu_types)
    spot = min(
        (one.spot_cost_per_hour for one in gpu_types if one.spot_cost_per_hour is not None),
        default=on_demand,
    )
    spot_replicas = math.floor(replicas * policy.spot_share + 1e-9)
    cost = spot_replicas * min(spot, on_demand) + (replicas - spot_replicas) * on_demand
    return cost * policy.gpus_per_replica


def _all_bounds(policy: PoolPolicy) -> Iterator[tuple[str, ReplicaBounds]]:
    """Yield the pool's own bounds and those of each entry of its schedule, with the field."""
    yield "replicas_min", ReplicaBounds(policy.replicas_min, policy.replicas_max)
    for number, entry in enumerate(policy.schedule):
        yield f"schedule[{number}].replicas_min", entry_bounds(policy, entry)


def _check_bounds(policy: PoolPolicy) -> Iterator[FieldProblem]:
    warm = policy.warm_replicas
    for field, bounds in _all_bounds(policy):
        fewest, most = bounds.replicas_min, bounds.replicas_max
        if fewest > most:
            yield field, f"{fewest} is above replicas_max {most}."
        elif fewest + warm > most:
            yield field, f"{fewest} and warm_replicas {warm} are above replicas_max {most}."
    for number, entry in enumerate(policy.schedule):
        if entry.replicas_min is None and entry.replicas_max is None:
            yield f"schedule[{number}]", "The entry has neither replicas_min nor replicas_max."
        try:
            parse_bulk_hours(entry.hours)
        except InvalidBulkHoursError as error:
            yield f"schedule[{number}].hours", str(error)


def _check_names(policy: PoolPolicy, gpu_types: Mapping[str, GpuType]) -> Iterator[FieldProblem]:
    for name in dict.fromkeys(policy.gpu_types):
        if name not in gpu_types:
            yield "gpu_types", f"The file has no table gpu_types.{name}."
    for field, names in (("gpu_types", policy.gpu_types), ("zones", policy.zones)):
        if len(set(names)) < len(names):
            yield field, "A name occurs twice."


def _check_curve(field: str, curve: Curve) -> Iterator[FieldProblem]:
    for (requests, rate), (more_requests, next_rate) in pairwise(curve):
        if more_requests <= requests:
            yield (
                field,
                f"{more_requests} concurrent requests follow {requests}: they must increase.",
            )
            return
        if next_rate < rate:
            yield field, f"It falls from {rate:g} to {next_rate:g} tokens/s."
            return


def _check_capacity(policy: PoolPolicy, types: list[GpuType]) -> Iterator[FieldProblem]:
    """Check that spot GPUs, quotas and the budget allow what the bounds demand."""
    field, fewest = max(
        ((field, bounds.replicas_min) for field, bounds in _all_bounds(policy)),
        key=lambda found: found[1],
    )
    demanded = fewest + policy.warm_replicas
    if policy.spot_share > 0 and all(one.spot_cost_per_hour is None for one in types):
        yield "spot_share", "No GPU type of the pool has a spot_cost_per_hour."
    quotas = [one.quota for one in types if one.quota is not None]
    if types and len(quotas) == len(types):
        possible = sum(quota // policy.gpus_per_replica for quota in quotas)
        if demanded > possible:
            yield field, f"The quotas allow {possible} replicas, and {demanded} must run."
    budget = policy.budget_per_hour
    if budget is None:
        return
    if not types:
        yield "budget_per_hour", "The pool has no gpu_types, so its cost is unknown."
    elif (cost := lowest_cost_per_hour(demanded, policy, types)) > budget * (1 + 1e-9):
        yield (
            "budget_per_hour",
            f"{budget:g} cannot pay the {demanded} replicas that must run: {cost:g}.",
        )
