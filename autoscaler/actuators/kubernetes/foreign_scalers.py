"""Finds HorizontalPodAutoscalers and ScaledObjects that change the same Deployments.

They are listed once a minute: two scalers of one Deployment undo each other's changes for ever.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from autoscaler.actuators.actuator import (
    ForeignScalerError,
    UnexpectedAnswerError,
    UnknownPoolError,
)
from autoscaler.actuators.kubernetes.kubernetes_client import KubernetesClient

LIST_INTERVAL_S: Final = 60.0
PAGE_ITEMS: Final = 500
_PAGES_MAX: Final = 20


class ForeignScalers:
    """The names of Deployments that another scaler of the namespace targets."""

    def __init__(
        self, client: KubernetesClient, namespace: str, monotonic_s: Callable[[], float]
    ) -> None:
        """`monotonic_s` returns seconds from any start."""
        self._client = client
        self._paths = (
            f"/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers",
            f"/apis/keda.sh/v1alpha1/namespaces/{namespace}/scaledobjects",
        )
        self._monotonic_s = monotonic_s
        self._targets: frozenset[str] = frozenset()
        self._listed_s: float | None = None

    async def check(self, deployments: Iterable[str]) -> None:
        """Raise ForeignScalerError if a scaler targets one of the Deployments; ActuatorError."""
        now_s = self._monotonic_s()
        if self._listed_s is None or now_s - self._listed_s >= LIST_INTERVAL_S:
            self._targets = frozenset(await self._list())
            self._listed_s = now_s
        if shared := sorted(self._targets.intersection(deployments)):
            self._listed_s = None  # the operator may remove it at any time
            raise ForeignScalerError(deployments=shared[:10])

    async def _list(self) -> set[str]:
        found: set[str] = set()
        for path in self._paths:
            try:
                items = await list_items(self._client, path, {})
            except UnknownPoolError:  # the cluster has no KEDA
                continue
            for item in items:
                found |= _target_of(item)
        return found


async def list_items(client: KubernetesClient, path: str, params: dict[str, str]) -> list[Any]:
    """Return the items of all pages of a list. Raises ActuatorError."""
    items: list[Any] = []
    params = {**params, "limit": str(PAGE_ITEMS)}
    for _ in range(_PAGES_MAX):
        page = await client.call("GET", path, params=params)
        if not isinstance(page, dict) or not isinstance(page.get("items"), list):
            raise UnexpectedAnswerError("The answer is no list.")
        items += page["items"]
        metadata = page.get("metadata")
        token = metadata.get("continue") if isinstance(metadata, dict) else None
        if not isinstance(token, str) or not token:
            return items
        params["continue"] = token
    raise UnexpectedAnswerError("The list has too many pages.")


def _target_of(item: Any) -> set[str]:
    """Return the Deployment that a scaler targets, if it targets one."""
    try:
        target = item["spec"]["scaleTargetRef"]
        name, kind = target["name"], target.get("kind") or "Deployment"
    except (TypeError, KeyError, AttributeError):
        raise UnexpectedAnswerError("The answer has a scaler without a target.") from None
    return {name} if kind == "Deployment" and isinstance(name, str) else set()
