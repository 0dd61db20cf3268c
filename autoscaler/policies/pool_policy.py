"""The tables of a scaling policy file, as structs. Each field carries its meaning.

The JSON schema of the file and the tables of docs/scaling_policies.md are made from these structs.
A struct checks types and ranges; `policy_checks` compares fields with each other.
"""

from enum import StrEnum
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from autoscaler.actuators.actuator_tables import ACTUATORS_MAX, ActuatorTable
from autoscaler.policy import scaling_rules
from autoscaler.policy.role_need import Role
from autoscaler.policy.scaling_rules import SCHEDULES_MAX, ZONES_MAX
from core.bulk_hours import BULK_HOURS_CHARS_MAX

REPLICAS_MAX: Final = 10_000
"""Replicas of one pool."""

POOLS_MAX: Final = 1_000
"""Tables of pools in a file."""

GPU_TYPES_MAX: Final = 64
"""Tables of GPU types in a file."""

_CURVE_POINTS_MAX: Final = 64

# `$` alone also matches before a newline at the end of a text.
NAME_PATTERN: Final = r"^[a-z0-9][a-z0-9._-]{0,62}$(?!\n)"
"""Names of GPU types and zones: at most 63 characters, as in labels of Kubernetes."""

POOL_PATTERN: Final = r"^[a-z0-9][a-z0-9._-]{0,99}\*?$(?!\n)"
"""The name of a pool, or the beginning of names and `*`."""

ROLE_PATTERN: Final = f"^({'|'.join(Role)})$(?!\\n)"
"""The name of a role that is scaled by its own load."""

Name: TypeAlias = Annotated[str, Meta(pattern=NAME_PATTERN)]
Replicas: TypeAlias = Annotated[int, Meta(ge=0, le=REPLICAS_MAX)]
Cost: TypeAlias = Annotated[float, Meta(gt=0, le=1_000_000)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0.01, le=2_592_000)]
CurvePoint: TypeAlias = tuple[
    Annotated[int, Meta(ge=1, le=100_000)], Annotated[float, Meta(gt=0, le=100_000_000)]
]
"""Concurrent requests of a replica, and the tokens/s of all of them together."""

Curve: TypeAlias = Annotated[
    tuple[CurvePoint, ...], Meta(min_length=1, max_length=_CURVE_POINTS_MAX)
]


class PolicyMode(StrEnum):
    """What the autoscaler does with its decisions for a pool."""

    ACTIVE = "active"  # applies them
    OBSERVE = "observe"  # decides, records and explains, but changes nothing
    PAUSED = "paused"  # decides nothing: the number of replicas stays


class GpuType(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A type of GPU that replicas may run on."""

    memory_gib: Annotated[float, Meta(gt=0, le=10_000, description="Memory of one GPU in GiB.")]
    cost_per_hour: Annotated[
        Cost, Meta(description="Cost of one on-demand GPU. All costs of a file have one currency.")
    ]
    throughput: Annotated[
        Curve,
        Meta(
            description="What one replica does: a list of `[concurrent requests, tokens/s]`. The "
            "first numbers increase; the second ones never fall. At most 64 points."
        ),
    ]
    spot_cost_per_hour: Annotated[
        Cost | None,
        Meta(
            description="Cost of one spot GPU, at most `cost_per_hour`. Without it the type has no "
            "spot capacity."
        ),
    ] = None
    quota: Annotated[
        Annotated[int, Meta(ge=0, le=1_000_000)] | None,
        Meta(
            description="GPUs of this type that all pools together may have, spot and on-demand. "
            "Without it there is no limit."
        ),
    ] = None


class ScheduleEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds on the replicas of a pool during hours of the week."""

    hours: Annotated[
        str,
        Meta(
            max_length=BULK_HOURS_CHARS_MAX,
            description="When the entry is in force: windows and a time zone, as "
            "`Mon-Fri 08:00-18:00 Europe/Berlin`. The form is that of bulk hours.",
        ),
    ]
    replicas_min: Annotated[
        Replicas | None, Meta(description="Replaces `replicas_min` of the pool.")
    ] = None
    replicas_max: Annotated[
        Replicas | None, Meta(description="Replaces `replicas_max` of the pool.")
    ] = None


class PoolPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a pool is scaled."""

    mode: Annotated[
        PolicyMode,
        Meta(
            description="`active` applies decisions, `observe` only records and explains them, "
            "`paused` makes none."
        ),
    ] = PolicyMode.ACTIVE
    replicas_min: Annotated[
        Replicas, Meta(description="Fewest replicas in the group. 0: the pool may sleep.")
    ] = 0
    replicas_max: Annotated[
        Replicas, Meta(description="Most replicas, those of the warm pool included.")
    ] = 10
    warm_replicas: Annotated[
        Replicas,
        Meta(
            description="Replicas of the warm pool: they have loaded the model but read no work "
            "until they are needed."
        ),
    ] = 0
    first_token_s: Annotated[
        Seconds,
        Meta(description="SLO of online calls: seconds to the first token, 95th percentile."),
    ] = 2.0
    queue_s: Annotated[
        Seconds, Meta(description="SLO of online calls: seconds in which a backlog is worked off.")
    ] = 2.0
    utilization: Annotated[
        float,
        Meta(
            ge=0.05,
            le=1,
            description="ρ: the share of a replica's throughput that online calls are planned to "
            "use. The rest absorbs bursts.",
        ),
    ] = 0.8
    stabilization_s: Annotated[
        float,
        Meta(
            ge=0,
            le=300,
            description="Seconds whose highest need bounds reductions. Shorter ones cost cold "
            "starts where load returns soon.",
        ),
    ] = 300.0
    idle_s: Annotated[
        Seconds,
        Meta(
            description="Seconds without work after which a pool with a minimum of 0 goes to zero."
        ),
    ] = 300.0
    schedule: Annotated[
        tuple[ScheduleEntry, ...],
        Meta(
            max_length=SCHEDULES_MAX,
            description="Other bounds by hours of the week, at most 16 entries. Of entries that "
            "are in force at once the first one counts.",
        ),
    ] = ()
    zones: Annotated[
        tuple[Name, ...],
        Meta(
            max_length=ZONES_MAX,
            description="Zones over which replicas are spread evenly, at most 16. None: any zone.",
        ),
    ] = ()
    gpu_types: Annotated[
        tuple[Name, ...],
        Meta(
            max_length=scaling_rules.GPU_TYPES_MAX,
            description="Names of at most 8 tables in `gpu_types`, the preferred one first. None: "
            "the device is not described, so throughput is learned and cost unknown.",
        ),
    ] = ()
    gpus_per_replica: Annotated[
        int, Meta(ge=1, le=1_024, description="GPUs of one replica: they count for cost and quota.")
    ] = 1
    throughput: Annotated[
        dict[Name, Curve],
        Meta(
            max_length=scaling_rules.GPU_TYPES_MAX,
            description="Curves of this pool by GPU type, in place of those of the types.",
        ),
    ] = {}
    spot_share: Annotated[
        float,
        Meta(ge=0, le=1, description="Largest share of the replicas that may run on spot GPUs."),
    ] = 0.0
    on_demand_fallback: Annotated[
        bool,
        Meta(description="Whether on-demand GPUs replace spot GPUs that cannot be had."),
    ] = True
    budget_per_hour: Annotated[
        Cost | None,
        Meta(description="Most that the replicas of the pool may cost in an hour; none: no limit."),
    ] = None
    actuator: Annotated[
        Name | None,
        Meta(
            description="Name of the table in `actuators` that starts and ends the replicas. None: "
            "the only table of the file."
        ),
    ] = None


class RolePolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a role of the control plane is scaled."""

    target_per_s: Annotated[
        float,
        Meta(
            ge=0.001,
            le=1e12,
            description="Work of one process per second: requests of api, bytes to validate of "
            "intake, records of batcher and results-writer.",
        ),
    ]
    mode: Annotated[PolicyMode, Meta(description="As for a pool.")] = PolicyMode.ACTIVE
    replicas_min: Annotated[
        int, Meta(ge=1, le=REPLICAS_MAX, description="Fewest processes; a role never sleeps.")
    ] = 1
    replicas_max: Annotated[
        int,
        Meta(
            ge=1,
            le=REPLICAS_MAX,
            description="Most processes. A batcher is never above 16 and a results-writer never "
            "above 8: the partitions that they read.",
        ),
    ] = 4
    drain_s: Annotated[
        Seconds, Meta(description="Seconds in which waiting work, or a lag, is worked off.")
    ] = 10.0
    actuator: Annotated[
        Name | None,
        Meta(
            description="Name of the table in `actuators` that starts and ends the processes, not "
            "of kind `embedded`. None: the only table of the file."
        ),
    ] = None


class ScalingFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scaling policies of Millrace. Every field of a pool has a default."""

    gpu_types: Annotated[
        dict[Name, GpuType],
        Meta(max_length=GPU_TYPES_MAX, description="Types of GPU by name."),
    ] = {}
    defaults: Annotated[
        PoolPolicy, Meta(description="Values for fields that the table of a pool leaves out.")
    ] = PoolPolicy()
    pools: Annotated[
        dict[Annotated[str, Meta(pattern=POOL_PATTERN)], PoolPolicy],
        Meta(
            max_length=POOLS_MAX,
            description="Policies by the name of a pool, or by the beginning of names and `*`.",
        ),
    ] = {}
    roles: Annotated[
        dict[Annotated[str, Meta(pattern=ROLE_PATTERN)], RolePolicy],
        Meta(max_length=len(Role), description="Policies by the name of a role."),
    ] = {}
    actuators: Annotated[
        dict[Name, ActuatorTable],
        Meta(max_length=ACTUATORS_MAX, description="What starts and ends replicas, by name."),
    ] = {}
