"""What the actuator knows of a pool's Deployments: names, labels, epochs. Pure.

One Deployment runs the replicas of a pool on one GPU type, spot or not, and in one zone if the
policy file wants so.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from autoscaler.actuators.actuator import (
    EPOCH_MAX,
    ForeignScalerError,
    KindCount,
    PoolOrder,
    StaleEpochError,
    UnexpectedAnswerError,
    UnknownPoolError,
)
from autoscaler.policy.role_need import Role, role_of_key

ROLE_DEPLOYMENTS: Final[Mapping[Role, str]] = {
    Role.API: "api",
    Role.INTAKE: "intake",
    Role.BATCHER: "batcher-bulk",
    Role.RESULTS_WRITER: "results-writer",
}
"""Last part of the name of the Deployment of a role. Batchers of online calls are not scaled."""

POOL_LABEL: Final = "millrace.dev/pool"
GPU_TYPE_LABEL: Final = "millrace.dev/gpu-type"
ZONE_LABEL: Final = "millrace.dev/zone"
SPOT_LABEL: Final = "millrace.dev/spot"
EPOCH_ANNOTATION: Final = "millrace.dev/scaling-epoch"
ACTUATOR_ANNOTATION: Final = "millrace.dev/actuator"
OBJECT_NAME_PATTERN: Final = r"^[a-z0-9][a-z0-9.-]{0,252}$(?!\n)"
LABEL_CHARS_MAX: Final = 63
DEPLOYMENTS_MAX: Final = 4_096
_REPLICAS_MAX: Final = 10_000
_EPOCH_DIGITS_MAX: Final = len(str(EPOCH_MAX))
# Names of Kubernetes alone: an id comes from a record, and its pod becomes part of a path.
_REPLICA_ID: Final = re.compile(r"(?P<pod>[a-z0-9][a-z0-9.-]*)-[0-9a-f]{8}")


class _Metadata(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(pattern=OBJECT_NAME_PATTERN)]
    resource_version: Annotated[str, Meta(min_length=1)] = msgspec.field(name="resourceVersion")
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class _Spec(msgspec.Struct, frozen=True):
    replicas: Annotated[int, Meta(ge=0, le=_REPLICAS_MAX)] = 1  # as Kubernetes' own default


class Deployment(msgspec.Struct, frozen=True):
    """The parts of a Deployment that matter here."""

    metadata: _Metadata
    spec: _Spec

    @property
    def name(self) -> str:
        """The name in its namespace."""
        return self.metadata.name

    @property
    def replicas(self) -> int:
        """The replicas that it is told to run."""
        return self.spec.replicas

    @property
    def kind(self) -> KindCount:
        """Its replicas with their kind."""
        labels = self.metadata.labels
        return KindCount(
            gpu_type=labels.get(GPU_TYPE_LABEL, ""),
            zone=labels.get(ZONE_LABEL, ""),
            spot=labels.get(SPOT_LABEL) == "true",
            replicas=self.spec.replicas,
        )

    @property
    def actuator(self) -> str | None:
        """The actuator that changes it."""
        return self.metadata.annotations.get(ACTUATOR_ANNOTATION)

    @property
    def epoch(self) -> int:
        """The highest epoch that was carried out; 0: none. Raises UnexpectedAnswerError."""
        text = self.metadata.annotations.get(EPOCH_ANNOTATION, "0")
        if not (text.isascii() and text.isdigit() and len(text) <= _EPOCH_DIGITS_MAX):
            raise UnexpectedAnswerError(f"The annotation {EPOCH_ANNOTATION} is no number.")
        if (epoch := int(text)) > EPOCH_MAX:
            raise UnexpectedAnswerError(f"The annotation {EPOCH_ANNOTATION} is no epoch.")
        return epoch


def role_deployment(release: str, pool: str) -> str | None:
    """Return the name of a role's only Deployment; None for a pool."""
    role = role_of_key(pool)
    return None if role is None else f"{release}-{ROLE_DEPLOYMENTS[role]}"


def selector_of(release: str, pool: str) -> dict[str, str]:
    """Return the parameters by which the Deployments of a pool or role are listed.

    Raises UnknownPoolError.
    """
    if name := role_deployment(release, pool):
        return {"fieldSelector": f"metadata.name={name}"}
    if len(pool) > LABEL_CHARS_MAX:
        raise UnknownPoolError("The name of the pool is longer than a label of Kubernetes.")
    return {"labelSelector": f"{POOL_LABEL}={pool}"}


def read_deployments(items: Iterable[Any], release: str, pool: str) -> dict[str, Deployment]:
    """Return the Deployments of a pool or role of one release by name.

    A Deployment whose name is not that of its labels and this release is left out: another release
    in the namespace may have a pool of the same name. Raises UnexpectedAnswerError.
    """
    found: dict[str, Deployment] = {}
    name = role_deployment(release, pool)
    for item in items:
        deployment = read_deployment(item)
        is_asked = (
            deployment.metadata.labels.get(POOL_LABEL) == pool
            if name is None
            else deployment.name == name
        )
        if not is_asked:
            raise UnexpectedAnswerError("The answer has a Deployment of another pool.")
        names = (
            deployment_name(release, pool, deployment.kind, per_zone=per_zone)
            for per_zone in (False, True)
        )
        if name is None and deployment.name not in names:
            continue
        found[deployment.name] = deployment
        if len(found) > DEPLOYMENTS_MAX:
            raise UnexpectedAnswerError("The pool has too many Deployments.")
    return found


def read_deployment(item: Any) -> Deployment:
    """Return a Deployment from decoded JSON. Raises UnexpectedAnswerError."""
    try:
        return msgspec.convert(item, Deployment)
    except msgspec.ValidationError:
        raise UnexpectedAnswerError("The answer has no valid Deployment.") from None


def deployment_name(release: str, pool: str, kind: KindCount, *, per_zone: bool) -> str:
    """Return `{release}-{pool}[-{gpu_type}][-{zone}][-spot]`, with `-` for `.` and `_`."""
    if role_name := role_deployment(release, pool):
        return role_name
    parts = [release, pool, kind.gpu_type, kind.zone if per_zone else "", "spot" * kind.spot]
    return "-".join(part for part in parts if part).replace(".", "-").replace("_", "-")


def replicas_by_name(release: str, order: PoolOrder, *, per_zone: bool) -> dict[str, int]:
    """Return the replicas of each Deployment that an order names."""
    counts: dict[str, int] = {}
    for kind in order.kinds:
        name = deployment_name(release, order.pool, kind, per_zone=per_zone)
        counts[name] = counts.get(name, 0) + kind.replicas
    return counts


def check_order(
    order: PoolOrder, counts: dict[str, int], found: dict[str, Deployment], actuator: str
) -> None:
    """Check that an order may change the Deployments of its pool.

    Raises UnknownPoolError if one is missing, ForeignScalerError if another actuator changes them,
    StaleEpochError if one has carried out a higher epoch.
    """
    missing = [name for name, count in counts.items() if count and name not in found]
    if missing or not found:
        raise UnknownPoolError(missing=missing)
    for deployment in found.values():
        check_owner(deployment, actuator)
        if deployment.epoch > order.epoch:
            raise StaleEpochError(epoch=deployment.epoch)


def check_owner(deployment: Deployment, actuator: str) -> None:
    """Raise ForeignScalerError if another actuator changes the Deployment."""
    if deployment.actuator not in {None, actuator}:
        raise ForeignScalerError(deployment=deployment.name, actuator=deployment.actuator)


def pod_of_replica(replica_id: str, pool: str) -> str | None:
    """Return the name of a replica's pod: its id is `{pool}-{name of the pod}-{8 hex digits}`.

    None for another form, and for a name of 63 characters: that of a host is cut there.
    """
    found = _REPLICA_ID.fullmatch(replica_id.removeprefix(f"{pool}-"))
    if found is None or not replica_id.startswith(f"{pool}-"):
        return None
    return found["pod"] if len(found["pod"]) < LABEL_CHARS_MAX else None
