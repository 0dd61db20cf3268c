"""Writes policies as TOML, for tests."""

import json
from typing import Any

import msgspec

from autoscaler.actuators.actuator_tables import ActuatorTable
from autoscaler.policies.policies import Policies
from autoscaler.policies.pool_policy import GpuType, PoolPolicy, RolePolicy


def policies_text(policies: Policies) -> str:
    """Return a file that says everything that the policies say."""
    lines = ["[defaults]", *_fields(policies.defaults)]
    for name, gpu_type in policies.gpu_types.items():
        lines += [f"[gpu_types.{json.dumps(name)}]", *_fields(gpu_type)]
    for name, policy in policies.pools.items():
        lines += [f"[pools.{json.dumps(name)}]", *_fields(policy)]
    for name, role in policies.roles.items():
        lines += [f"[roles.{name}]", *_fields(role)]
    for name, actuator in policies.actuators.items():
        lines += [f"[actuators.{json.dumps(name)}]", *_fields(actuator)]
    return "\n".join(lines) + "\n"


def _fields(policy: GpuType | PoolPolicy | RolePolicy | ActuatorTable) -> list[str]:
    found = msgspec.to_builtins(policy)
    return [f"{name} = {_value(value)}" for name, value in found.items() if value is not None]


def _value(value: Any) -> str:
    if isinstance(value, dict):
        pairs = (f"{json.dumps(k)} = {_value(v)}" for k, v in value.items() if v is not None)
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",\n".join(map(_value, value)) + "]"
    return json.dumps(value)
