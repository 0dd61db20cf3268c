"""What other batchers serve the tenants of a pool: fairness holds over all batchers. Pure.

Each batcher reports absolute numbers, so a lost report only delays them. What another batcher
served a tenant is charged here, too; and each batcher asks replicas for the part of a pool that its
tenants are due: their weights, each divided between the batchers where items of that tenant wait.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from topics.records.records import ServiceReport, TenantService

SILENCE_S_MAX: Final = 3.0
"""Silence after which nothing waits at another batcher any more. It reports each second."""

FORGET_S: Final = 60.0
"""Silence after which a batcher is forgotten. Each start of a batcher is a new one."""


class ServedElsewhere(NamedTuple):
    """Service of a tenant by another batcher, since its report before."""

    pool: str
    tenant_id: UUID
    service: float


@dataclass(frozen=True, slots=True)
class _Other:
    """The last report of another batcher."""

    read_s: float
    pools: Mapping[str, Mapping[UUID, TenantService]]


class ServiceExchange:
    """The reports of the other batchers of the same class."""

    def __init__(self, batcher_id: str, job_class: str) -> None:
        """Start without other batchers."""
        self._batcher_id, self._job_class = batcher_id, job_class
        self._others: dict[str, _Other] = {}

    def has_others(self, *, now_s: float) -> bool:
        """Whether another batcher reported of late."""
        return any(now_s - other.read_s <= SILENCE_S_MAX for other in self._others.values())

    def apply(self, report: ServiceReport, *, now_s: float) -> list[ServedElsewhere]:
        """Apply a report and return what was served since the one before.

        The first report of a batcher charges nothing: its service may be older than this process.
        """
        if report.batcher_id == self._batcher_id or report.job_class != self._job_class:
            return []
        before = self._others.get(report.batcher_id)
        pools = {
            name: {one.tenant_id: one for one in found} for name, found in report.pools.items()
        }
        self._others[report.batcher_id] = _Other(now_s, pools)
        if before is None:
            self._forget_silent(now_s)
            return []
        return [
            ServedElsewhere(name, tenant_id, service)
            for name, tenants in pools.items()
            for tenant_id, one in tenants.items()
            if (service := one.served - _served(before.pools, name, tenant_id)) > 0
        ]

    def share(
        self, pool: str, waiting: Mapping[UUID, int], weights: Mapping[UUID, int], *, now_s: float
    ) -> float:
        """Return the weights of the tenants that wait here, less what of them waits elsewhere."""
        others = [
            tenants
            for other in self._others.values()
            if now_s - other.read_s <= SILENCE_S_MAX and (tenants := other.pools.get(pool))
        ]
        total = 0.0
        for tenant_id, count in waiting.items():
            elsewhere = sum(
                one.waiting for tenants in others if (one := tenants.get(tenant_id)) is not None
            )
            total += weights.get(tenant_id, 1) * count / (count + elsewhere)
        return total

    def _forget_silent(self, now_s: float) -> None:
        self._others = {
            name: other for name, other in self._others.items() if now_s - other.read_s <= FORGET_S
        }


def _served(pools: Mapping[str, Mapping[UUID, TenantService]], pool: str, tenant_id: UUID) -> float:
    known = pools.get(pool, {}).get(tenant_id)
    return 0.0 if known is None else known.served
