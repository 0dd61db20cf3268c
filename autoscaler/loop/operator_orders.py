"""What operators ordered and what they have to see: overrides, modes and alerts. Pure."""

from collections.abc import Mapping

from autoscaler.loop.scaled_pool import Mode
from autoscaler.loop.scaled_unit import ScaledUnit
from autoscaler.policies.policies import Policies
from autoscaler.policy.role_need import role_of_key
from topics.records.scaling import ScalingOverride


def ordered_replicas(override: ScalingOverride | None) -> int | None:
    """Return the replicas that an order in force sets."""
    return override.replicas if override is not None and override.mode == "set" else None


def mode_of(policies: Policies, pool: str, override: ScalingOverride | None) -> Mode:
    """Return the mode of a pool or role: an operator may pause it."""
    if override is not None and override.mode == "paused":
        return "paused"
    role = role_of_key(pool)
    policy = policies.policy_of(pool) if role is None else policies.roles[role]
    mode: Mode = policy.mode.value
    return mode


def override_in_force(
    overrides: Mapping[str, ScalingOverride], pool: str, now_s: float
) -> ScalingOverride | None:
    """Return what an operator ordered for a pool or role, if it holds now."""
    override = overrides.get(pool)
    return override if override is not None and override.is_in_force(now_s) else None


def alert_of(state: ScaledUnit, actuator: str, failure: str) -> str:
    """Return what an operator has to see of a pool, in sentences; empty: nothing."""
    found = []
    if failure:
        found.append(f"The actuator {actuator} did not carry out the last order: {failure}.")
    if stuck := state.fleet.stuck.total():
        found.append(f"Replicas did not become ready in time and are to end: {stuck}.")
    if state.decision is not None and state.decision.alert:
        found.append(state.decision.alert)
    return " ".join(found)
