"""The tables `[actuators.NAME]` of a scaling policy file. Each field carries its meaning.

`kind` chooses the struct. No table holds a secret: it names the file that does.
"""

from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

ACTUATORS_MAX: Final = 16
"""Tables of actuators in a file."""

COMMAND_ARGUMENTS_MAX: Final = 64

# Names of Kubernetes. Others follow in that of a Deployment, so a release has fewer characters.
_RELEASE_PATTERN: Final = r"^[a-z0-9]([a-z0-9-]{0,51}[a-z0-9])?$(?!\n)"
NAMESPACE_PATTERN: Final = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$(?!\n)"

TimeoutSeconds: TypeAlias = Annotated[
    float,
    Meta(
        ge=0.1,
        le=9,
        description="Seconds until an act counts as failed. The order is sent again.",
    ),
]
"""Below the 10 s in which each method of an actuator ends."""

Standby: TypeAlias = Annotated[
    bool,
    Meta(
        description="Whether all replicas of the Deployments start with "
        "`MILLRACE_GPU_STANDBY=true`. Pools with `warm_replicas` need it."
    ),
]


class EmbeddedTable(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="embedded"
):
    """The embedded stack: `millrace up --autoscale FILE` starts and ends processes."""


class KubernetesTable(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="kubernetes"
):
    """Deployments of a namespace of Kubernetes."""

    namespace: Annotated[
        Annotated[str, Meta(pattern=NAMESPACE_PATTERN)] | None,
        Meta(description="Namespace of the Deployments. None: that of the autoscaler's own pod."),
    ] = None
    release: Annotated[
        str,
        Meta(
            pattern=_RELEASE_PATTERN,
            description="First part of the names of Deployments: "
            "`{release}-{pool}[-{gpu_type}][-{zone}][-spot]`.",
        ),
    ] = "millrace"
    per_zone: Annotated[
        bool,
        Meta(
            description="Whether each zone has a Deployment of its own. Else the replicas of all "
            "zones are those of one Deployment, which spreads them."
        ),
    ] = False
    timeout_s: TimeoutSeconds = 8.0
    standby: Standby = False


class KedaTable(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="keda"
):
    """KEDA and HorizontalPodAutoscalers, which read the number of replicas as a metric."""

    value_past_tolerance: Annotated[
        bool,
        Meta(
            description="Whether a small change is told as a value that is past the 10 % within "
            "which an HPA does nothing. Needed where HPAs have no `tolerance`."
        ),
    ] = False
    standby: Standby = False


class CommandTable(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="command"
):
    """A command of the operator, which reads an order as JSON."""

    command: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=1_024)], ...],
        Meta(
            min_length=1,
            max_length=COMMAND_ARGUMENTS_MAX,
            description="The program and its arguments. No shell reads them.",
        ),
    ]
    timeout_s: TimeoutSeconds = 8.0


class WebhookTable(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="webhook"
):
    """An HTTP server of the operator, which gets signed orders."""

    url: Annotated[
        str,
        Meta(
            max_length=1_000,
            description="Where orders are posted to: `https`, or `http` on this machine.",
        ),
    ]
    secret_file: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=1_000,
            description="File with the signing secret, `whsec_…`; it is read for each order.",
        ),
    ]
    timeout_s: TimeoutSeconds = 5.0


ActuatorTable: TypeAlias = EmbeddedTable | KubernetesTable | KedaTable | CommandTable | WebhookTable

TABLES: Final[dict[str, type[msgspec.Struct]]] = {
    "embedded": EmbeddedTable,
    "kubernetes": KubernetesTable,
    "keda": KedaTable,
    "command": CommandTable,
    "webhook": WebhookTable,
}
"""The struct of each kind."""
