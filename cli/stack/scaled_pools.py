"""What `millrace up --autoscale FILE` takes from the scaling policies: how each pool begins."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from autoscaler.actuators.actuator import KindCount, PoolOrder
from autoscaler.policies.policies import Policies, bounds_at
from autoscaler.policies.policy_file import PolicyFile
from autoscaler.policies.policy_reader import InvalidPoliciesError
from autoscaler.policies.pool_policy import PolicyMode
from cli.stack.replica_pools import REPLICAS_MAX
from cli.stack.scaling_socket import FILE_NAME
from core.errors import SettingsError

POLICY_FILE: Final = "MILLRACE_AUTOSCALER_POLICY_FILE"
SOCKET: Final = "MILLRACE_AUTOSCALER_SOCKET"
ACTUATOR: Final = "MILLRACE_AUTOSCALER_ACTUATOR"


@dataclass(frozen=True, slots=True, kw_only=True)
class StackPool:
    """A pool of the stack under its scaling policy, as of the start."""

    pool: str
    mode: PolicyMode
    replicas_min: int
    replicas_max: int
    kinds: tuple[KindCount, ...]  # with which it begins

    @property
    def order(self) -> PoolOrder:
        """The order that each autoscaler may replace."""
        return PoolOrder(pool=self.pool, epoch=0, sequence=0, kinds=self.kinds)

    def bounds_text(self) -> str:
        """Return a line for the operator."""
        return (
            f"pool {self.pool}: {self.replicas_min} to {self.replicas_max} replicas, "
            f"mode {self.mode}"
        )


def read_stack_policies(path: Path) -> Policies:
    """Return the policies in a file. Raises SettingsError with a line for each problem."""
    try:
        return PolicyFile(path).policies
    except InvalidPoliciesError as error:
        raise SettingsError("\n".join(("--autoscale:", *error.problems))) from None


def scaled_pools(policies: Policies, pools: Iterable[str], at_s: float) -> tuple[StackPool, ...]:
    """Return how each pool begins at a time, in seconds since the epoch: with its minimum.

    Raises SettingsError when the minimums are more replicas than an embedded stack has.
    """
    scaled = tuple(_scaled_pool(policies, pool, at_s) for pool in pools)
    wanted = sum(pool.replicas_min for pool in scaled)
    if wanted > REPLICAS_MAX:
        raise SettingsError(
            f"--autoscale: the pools have at least {wanted} replicas together; "
            f"`millrace up` runs at most {REPLICAS_MAX}"
        )
    return scaled


def unserved_tables(policies: Policies, pools: Iterable[str]) -> tuple[str, ...]:
    """Return the tables of pools, by name or pattern, that apply to no pool of the stack."""
    served = tuple(pools)
    return tuple(
        table
        for table in policies.pools
        if not any(
            pool.startswith(table[:-1]) if table.endswith("*") else pool == table for pool in served
        )
    )


def autoscaler_env(data: Path, policy_file: Path) -> dict[str, str]:
    """Return the variables of the role `autoscaler` in the stack on `data`."""
    return {
        POLICY_FILE: str(policy_file.absolute()),
        SOCKET: str(socket_path(data)),
        ACTUATOR: "embedded",
    }


def socket_path(data: Path) -> Path:
    """Return the path of the socket on which the stack takes orders."""
    return data.absolute() / FILE_NAME


def _scaled_pool(policies: Policies, pool: str, at_s: float) -> StackPool:
    policy = policies.policy_of(pool)
    bounds = bounds_at(policy, at_s)
    gpu_type = policy.gpu_types[0] if policy.gpu_types else ""
    counts: Mapping[str, int] = _spread(bounds.replicas_min, policy.zones or ("",))
    kinds = tuple(
        KindCount(gpu_type=gpu_type, zone=zone, replicas=replicas)
        for zone, replicas in counts.items()
        if replicas
    )
    return StackPool(
        pool=pool,
        mode=policy.mode,
        replicas_min=bounds.replicas_min,
        replicas_max=bounds.replicas_max,
        kinds=kinds,
    )


def _spread(replicas: int, zones: tuple[str, ...]) -> dict[str, int]:
    """Return replicas by zone, evenly; the first zones get the rest."""
    each, rest = divmod(replicas, len(zones))
    return {zone: each + (index < rest) for index, zone in enumerate(zones)}
