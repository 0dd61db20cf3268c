"""The policies in force: which table a pool gets, and its bounds at a time. Pure."""

from dataclasses import dataclass

import msgspec

from autoscaler.actuators.actuator_tables import ActuatorTable
from autoscaler.policies.pool_policy import Curve, GpuType, PoolPolicy, RolePolicy, ScheduleEntry
from autoscaler.policy.role_need import role_of_key
from core.bulk_hours import next_opening, parse_bulk_hours


class Policies(msgspec.Struct, frozen=True):
    """What a scaling policy file says. Values of `pools` contain the defaults of the file."""

    gpu_types: dict[str, GpuType]
    defaults: PoolPolicy
    pools: dict[str, PoolPolicy]
    roles: dict[str, RolePolicy] = {}
    actuators: dict[str, ActuatorTable] = {}

    def table_of(self, pool: str) -> str | None:
        """Return the key in `pools` of the table for a pool; None: it gets the defaults.

        That is the pool's own name, else the longest pattern that fits.
        """
        if pool in self.pools:
            return pool
        patterns = (f"{pool[:length]}*" for length in range(len(pool), 0, -1))
        return next((name for name in patterns if name in self.pools), None)

    def policy_of(self, pool: str) -> PoolPolicy:
        """Return the policy of a pool; each pool has one."""
        table = self.table_of(pool)
        return self.defaults if table is None else self.pools[table]

    def actuator_of(self, pool: str) -> str | None:
        """Return the name of the actuator of a pool: its own, else the only one of the file.

        A role has the name of its `role_key`. None: the file has none, or the pool is not active
        and names none of several.
        """
        role = role_of_key(pool)
        policy = self.policy_of(pool) if role is None else self.roles.get(role)
        named = None if policy is None else policy.actuator
        if named is None and len(self.actuators) == 1:
            return next(iter(self.actuators))
        return named

    def curve_of(self, pool: str, gpu_type: str) -> Curve:
        """Return concurrency and tokens/s of a replica of the pool on a GPU type.

        Raises KeyError for a type that the file does not have.
        """
        own = self.policy_of(pool).throughput.get(gpu_type)
        return self.gpu_types[gpu_type].throughput if own is None else own


@dataclass(frozen=True, slots=True)
class ReplicaBounds:
    """Fewest and most replicas of a pool at a time."""

    replicas_min: int
    replicas_max: int
    hours: str | None = None  # of the entry of the schedule that decided; None: the pool's own


def bounds_at(policy: PoolPolicy, at_s: float) -> ReplicaBounds:
    """Return the bounds of a pool at a time, in seconds since the epoch.

    The first entry of the schedule whose hours are open decides. A bound that it leaves out is the
    pool's own.
    """
    for entry in policy.schedule:
        if next_opening(at_s, (parse_bulk_hours(entry.hours),)) <= at_s:
            return entry_bounds(policy, entry)
    return ReplicaBounds(policy.replicas_min, policy.replicas_max)


def entry_bounds(policy: PoolPolicy, entry: ScheduleEntry) -> ReplicaBounds:
    """Return the bounds while an entry of the schedule is in force."""
    fewest, most = entry.replicas_min, entry.replicas_max
    return ReplicaBounds(
        policy.replicas_min if fewest is None else fewest,
        policy.replicas_max if most is None else most,
        entry.hours,
    )
