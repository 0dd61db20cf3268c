"""An actuator that sets the scale of Deployments.

Each Deployment of a pool keeps the highest epoch and the name of its actuator in annotations. Both
are written before the scale, and every write has the resource version that was read as its
precondition: an autoscaler that lost its ownership between two writes gets a conflict, reads the
newer epoch and stops.
"""

import asyncio
from collections.abc import Callable
from itertools import starmap
from typing import Annotated, Any, ClassVar, Final

import msgspec
from msgspec import Meta

from autoscaler.actuators.actuator import (
    ActuatorConflictError,
    ActuatorTimeoutError,
    Observed,
    PoolOrder,
    UnexpectedAnswerError,
    UnknownPoolError,
)
from autoscaler.actuators.actuator_tables import KubernetesTable
from autoscaler.actuators.kubernetes.deployments import (
    ACTUATOR_ANNOTATION,
    EPOCH_ANNOTATION,
    OBJECT_NAME_PATTERN,
    POOL_LABEL,
    Deployment,
    check_order,
    check_owner,
    pod_of_replica,
    read_deployment,
    read_deployments,
    replicas_by_name,
    role_deployment,
    selector_of,
)
from autoscaler.actuators.kubernetes.foreign_scalers import ForeignScalers, list_items
from autoscaler.actuators.kubernetes.kubernetes_client import MERGE_PATCH, KubernetesClient

DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
REMOVED_COST: Final = "-1000"
"""Cost of a pod that is to go: a ReplicaSet ends ready pods of the lowest cost first."""

CONFLICT_PAUSES_S: Final = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Seconds before each further try after a conflict.

Controllers raise the resource version of a Deployment with each change of its status: a few times
within a second of a new scale, and for each pod that becomes ready.
"""

_CONCURRENT_CALLS: Final = 8


class _PodMetadata(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(pattern=OBJECT_NAME_PATTERN)]
    annotations: dict[str, str] = {}


class _Pod(msgspec.Struct, frozen=True):
    metadata: _PodMetadata


class KubernetesActuator:
    """Scales the Deployments of pools in one namespace."""

    kind: ClassVar[str] = "kubernetes"
    chooses_removals: ClassVar[bool] = True

    def __init__(
        self,
        name: str,
        table: KubernetesTable,
        client: KubernetesClient,
        *,
        namespace: str,
        monotonic_s: Callable[[], float],
    ) -> None:
        """`name` is that of the table in the policy file. The client ends with the actuator."""
        self._name = name
        self._client = client
        self._path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
        self._pods_path = f"/api/v1/namespaces/{namespace}/pods"
        self._release = table.release
        self._per_zone = table.per_zone
        self._timeout_s = table.timeout_s
        self._foreign = ForeignScalers(client, namespace, monotonic_s)

    async def apply(self, order: PoolOrder) -> None:
        """Set the scale of each Deployment of the pool; those that the order lacks get 0.

        After a conflict all is read and checked again, by CONFLICT_PAUSES_S. Raises ActuatorError.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                for pause_s in CONFLICT_PAUSES_S:
                    try:
                        return await self._carry_out(order)
                    except ActuatorConflictError:
                        await asyncio.sleep(pause_s)
                await self._carry_out(order)
        except TimeoutError:
            raise ActuatorTimeoutError from None

    async def observe(self, pool: str) -> Observed:
        """Return the scale of each Deployment of the pool. Raises ActuatorError."""
        try:
            async with asyncio.timeout(self._timeout_s):
                found = await self._deployments(pool)
        except TimeoutError:
            raise ActuatorTimeoutError from None
        if not found:
            raise UnknownPoolError(pool=pool)
        for deployment in found.values():
            check_owner(deployment, self._name)
        return Observed(
            kinds=tuple(deployment.kind for deployment in found.values()),
            epoch=max(deployment.epoch for deployment in found.values()),
        )

    async def close(self) -> None:
        """Close connections to the API server."""
        await self._client.close()

    async def _carry_out(self, order: PoolOrder) -> None:
        found = await self._deployments(order.pool)
        counts = replicas_by_name(self._release, order, per_zone=self._per_zone)
        check_order(order, counts, found, self._name)
        await self._foreign.check(found)
        # The fence of all before the first change: an older autoscaler changes none of them then.
        fenced = {name: await self._fence(found[name], order.epoch) for name in found}
        shrinking = [name for name in fenced if counts.get(name, 0) < fenced[name].replicas]
        for name in fenced.keys() - shrinking:  # work waits for these
            await self._scale(fenced[name], counts.get(name, 0))
        if shrinking and role_deployment(self._release, order.pool) is None:
            await self._mark_removals(order, shrinking)
        for name in shrinking:
            await self._scale(fenced[name], counts.get(name, 0))

    async def _deployments(self, pool: str) -> dict[str, Deployment]:
        items = await list_items(self._client, self._path, selector_of(self._release, pool))
        return read_deployments(items, self._release, pool)

    async def _fence(self, deployment: Deployment, epoch: int) -> Deployment:
        """Write epoch and actuator unless they are there. Raises ActuatorConflictError."""
        if deployment.epoch == epoch and deployment.actuator == self._name:
            return deployment
        annotations = {EPOCH_ANNOTATION: str(epoch), ACTUATOR_ANNOTATION: self._name}
        version = deployment.metadata.resource_version
        answer = read_deployment(
            await self._client.call(
                "PATCH",
                f"{self._path}/{deployment.name}",
                body={"metadata": {"resourceVersion": version, "annotations": annotations}},
                content_type=MERGE_PATCH,
            )
        )
        if answer.name != deployment.name or answer.epoch != epoch:
            raise UnexpectedAnswerError("The API server answers with another Deployment.")
        return answer

    async def _scale(self, deployment: Deployment, replicas: int) -> None:
        if deployment.replicas == replicas:
            return
        answer = await self._client.call(
            "PUT",
            f"{self._path}/{deployment.name}/scale",
            body={
                "apiVersion": "autoscaling/v1",
                "kind": "Scale",
                "metadata": {
                    "name": deployment.name,
                    "resourceVersion": deployment.metadata.resource_version,
                },
                "spec": {"replicas": replicas},
            },
        )
        if _replicas_of(answer) != replicas:
            raise UnexpectedAnswerError("The API server answers with another scale.")

    async def _mark_removals(self, order: PoolOrder, shrinking: list[str]) -> None:
        """Lower the deletion cost of the pods to remove, so that no others are ended.

        A pod that an earlier order wanted to remove, and that is to stay, loses its mark.
        """

        def is_shrinking(pod: str) -> bool:
            return any(pod.startswith(f"{name}-") for name in shrinking)

        named = {pod_of_replica(one, order.pool) for one in order.removals}
        removed = {pod for pod in named if pod is not None and is_shrinking(pod)}
        items = await list_items(
            self._client, self._pods_path, {"labelSelector": f"{POOL_LABEL}={order.pool}"}
        )
        marked = {pod for pod in map(_marked_pod, items) if pod is not None and is_shrinking(pod)}
        costs: dict[str, str | None] = dict.fromkeys(sorted(marked - removed))
        costs |= dict.fromkeys(sorted(removed - marked), REMOVED_COST)
        slots = asyncio.Semaphore(_CONCURRENT_CALLS)

        async def mark(pod: str, cost: str | None) -> None:
            async with slots:
                try:
                    await self._client.call(
                        "PATCH",
                        f"{self._pods_path}/{pod}",
                        body={"metadata": {"annotations": {DELETION_COST: cost}}},
                        content_type=MERGE_PATCH,
                    )
                except UnknownPoolError:
                    return  # it has ended

        ended = await asyncio.gather(*starmap(mark, costs.items()), return_exceptions=True)
        for failure in ended:  # all calls have ended
            if failure is not None:
                raise failure


def _marked_pod(item: Any) -> str | None:
    """Return the name of a pod that is to be ended first; None for any other."""
    try:
        metadata = msgspec.convert(item, _Pod).metadata
    except msgspec.ValidationError:
        return None
    return metadata.name if metadata.annotations.get(DELETION_COST) == REMOVED_COST else None


def _replicas_of(scale: Any) -> object:
    spec = scale.get("spec") if isinstance(scale, dict) else None
    # The API server leaves out what is 0.
    return spec.get("replicas", 0) if isinstance(spec, dict) else None
