"""Finds HorizontalPodAutoscalers and ScaledObjects that change the same Deployments.

They are listed once a minute: two scalers of one Deployment undo each other's changes for ever.
"""

import asyncio
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from autoscaler.actuators.actuator import (
    ActuatorDeniedError,
    ActuatorError,
    ForeignScalerError,
    UnexpectedAnswerError,
    UnknownPoolError,
)
from autoscaler.actuators.kubernetes.kubernetes_client import KubernetesClient

LIST_INTERVAL_S: Final = 60.0
RECHECK_S: Final = 10.0
"""Least time between two lists, after a foreign scaler was found or a list failed."""

PAGE_ITEMS: Final = 500
_PAGES_MAX: Final = 20


class ForeignScalers:
    """The names of Deployments that another scaler of the namespace targets."""

    def __init__(
        self, client: KubernetesClient, namespace: str, monotonic_s: Callable[[], float]
    ) -> None:
        """`monotonic_s` returns seconds from any start."""
        self._client = client
        self._hpa_path = f"/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers"
        self._keda_path = f"/apis/keda.sh/v1alpha1/namespaces/{namespace}/scaledobjects"
        self._monotonic_s = monotonic_s
        self._targets: frozenset[str] = frozenset()
        self._listed_s = -math.inf
        self._failure: ActuatorError | None = None  # of the last list
        self._listing = asyncio.Lock()  # orders of all pools wait for one list

    async def check(self, deployments: Iterable[str]) -> None:
        """Raise ForeignScalerError if a scaler targets one of the Deployments; ActuatorError."""
        names = frozenset(deployments)
        async with self._listing:
            if self._is_due(names):
                try:
                    self._targets, self._failure = frozenset(await self._list()), None
                except ActuatorError as failure:
                    self._failure = failure
                self._listed_s = self._monotonic_s()
        if self._failure is not None:
            raise type(self._failure)(str(self._failure))
        if shared := sorted(self._targets & names):
            raise ForeignScalerError(deployments=shared[:10])

    def _is_due(self, names: frozenset[str]) -> bool:
        # An operator may remove a foreign scaler, or grant a right, at any time.
        is_refused = self._failure is not None or not self._targets.isdisjoint(names)
        age_s = self._monotonic_s() - self._listed_s
        return age_s >= (RECHECK_S if is_refused else LIST_INTERVAL_S)

    async def _list(self) -> set[str]:
        items = await list_items(self._client, self._hpa_path, {})
        # Without KEDA the path is unknown, or no right to it was given. Where KEDA scales, its HPA
        # is in the list above, too.
        with suppress(UnknownPoolError, ActuatorDeniedError):
            items += await list_items(self._client, self._keda_path, {})
        return {target for item in items if (target := _target_of(item)) is not None}


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


def _target_of(item: Any) -> str | None:
    """Return the Deployment that a scaler may target; None: it targets none.

    A scaler without the name of a target scales nothing. One whose kind cannot be read counts.
    """
    try:
        target = item["spec"]["scaleTargetRef"]
        name, kind = target["name"], target.get("kind") or "Deployment"
    except (TypeError, KeyError, AttributeError):
        return None
    is_other = isinstance(kind, str) and kind != "Deployment"
    return name if isinstance(name, str) and not is_other else None
