"""What other batchers serve the tenants of a pool: fairness holds over all batchers. Pure.

Each batcher reports absolute numbers, so a lost report only delays them. What another batcher
served a tenant is charged here, too; and each batcher asks replicas for the part of a pool that its
tenants are due: their effective weights, each divided between the batchers where items of that
tenant wait.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from core.tenant_claims import NORMAL_CLASS, TenantClaim, effective_weights
from topics.records.records import ServiceReport, TenantService

SILENCE_S_MAX: Final = 3.0
"""Silence after which nothing waits at another batcher any more. It reports each second at least.
A tenant whose last number is older is charged nothing for the next one."""

FORGET_S: Final = 60.0
"""Silence after which a batcher, or a tenant of its reports, is forgotten."""


class RemoteService(NamedTuple):
    """Service of a tenant by another batcher, since its report before."""

    pool: str
    tenant_id: UUID
    service: float
    weight: int = 0  # that `service` was divided by; 0: unknown
    tenant_class: int = NORMAL_CLASS


@dataclass(slots=True)
class _Other:
    """Another batcher: its last report, and the newest number of each tenant."""

    read_s: float = float("-inf")
    pools: Mapping[str, Mapping[UUID, TenantService]] = field(default_factory=dict)
    served: dict[tuple[str, UUID], tuple[float, float]] = field(default_factory=dict)
    """By pool and tenant: the number, and when it was read."""


class ServiceExchange:
    """The reports of the other batchers of the same class."""

    def __init__(self, batcher_id: str, job_class: str) -> None:
        """Start without other batchers."""
        self._batcher_id, self._job_class = batcher_id, job_class
        self._others: dict[str, _Other] = {}
        self._forgot_s = float("-inf")

    def has_others(self, *, now_s: float) -> bool:
        """Whether another batcher reported of late."""
        return any(now_s - other.read_s <= SILENCE_S_MAX for other in self._others.values())

    def apply(self, report: ServiceReport, *, now_s: float) -> list[RemoteService]:
        """Apply a report and return the service of each tenant since the previous report.

        The first number of a tenant charges nothing, nor does the first one after a silence: it may
        be of hours, and the tenant would wait as long.
        """
        if report.batcher_id == self._batcher_id or report.job_class != self._job_class:
            return []
        self._forget(now_s)
        other = self._others.setdefault(report.batcher_id, _Other())
        found = []
        for name, tenants in report.pools.items():
            for one in tenants:
                key = name, one.tenant_id
                before, at_s = other.served.get(key, (0.0, float("-inf")))
                other.served[key] = one.served, now_s
                # A smaller number: the sender had forgotten the tenant.
                service = one.served - before if one.served >= before else one.served
                if service > 0 and now_s - at_s <= SILENCE_S_MAX:
                    found.append(
                        RemoteService(name, one.tenant_id, service, one.weight, one.tenant_class)
                    )
        other.read_s = now_s
        other.pools = {name: {one.tenant_id: one for one in n} for name, n in report.pools.items()}
        return found

    def weights(
        self, pool: str, claims: Mapping[UUID, TenantClaim], *, now_s: float
    ) -> dict[UUID, float]:
        """Return the effective weights of all tenants that wait at any batcher.

        `claims` are those of the tenants that wait here.
        """
        found = {
            one.tenant_id: TenantClaim(max(1, one.weight), one.reserved, one.tenant_class)
            for tenants in self._reports(pool, now_s)
            for one in tenants.values()
            if one.waiting
        }
        return effective_weights(found | dict(claims))

    def share(
        self, pool: str, waiting: Mapping[UUID, int], weights: Mapping[UUID, float], *, now_s: float
    ) -> float:
        """Return the weights of the tenants that wait here, less what of them waits elsewhere."""
        others = self._reports(pool, now_s)
        total = 0.0
        for tenant_id, count in waiting.items():
            elsewhere = sum(
                one.waiting for tenants in others if (one := tenants.get(tenant_id)) is not None
            )
            total += weights.get(tenant_id, 1) * count / (count + elsewhere)
        return total

    def _reports(self, pool: str, now_s: float) -> list[Mapping[UUID, TenantService]]:
        """Return the tenants of a pool at each other batcher that reported of late."""
        return [
            tenants
            for other in self._others.values()
            if now_s - other.read_s <= SILENCE_S_MAX and (tenants := other.pools.get(pool))
        ]

    def _forget(self, now_s: float) -> None:
        """Forget silent batchers, and tenants that reports name no more."""
        if now_s - self._forgot_s < FORGET_S:
            return
        self._forgot_s = now_s
        self._others = {
            name: other for name, other in self._others.items() if now_s - other.read_s <= FORGET_S
        }
        for other in self._others.values():
            other.served = {
                key: (served, at_s)
                for key, (served, at_s) in other.served.items()
                if now_s - at_s <= FORGET_S
            }
