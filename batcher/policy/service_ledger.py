"""What this batcher has served to each tenant of a pool, as its reports say it. Pure."""

from collections.abc import Container, Iterator
from typing import Final
from uuid import UUID

KEEP_S: Final = 60.0
"""A tenant without items is kept for so long or twice as long, and its number goes on if it returns
in that time: readers compare it with the one before."""


class ServiceLedger:
    """Tokens divided by the weight, for each tenant since it came to this batcher."""

    def __init__(self) -> None:
        """Start without tenants."""
        self._served: dict[UUID, float] = {}
        self._at_last_prune: dict[UUID, float] = {}
        self._pruned_s = float("-inf")

    def __len__(self) -> int:
        return len(self._served)

    def __iter__(self) -> Iterator[UUID]:
        return iter(self._served)

    def add(self, tenant_id: UUID, service: float) -> None:
        """Add service of a tenant."""
        self._served[tenant_id] = self._served.get(tenant_id, 0.0) + service

    def served(self, tenant_id: UUID) -> float:
        """Return the service of a tenant so far; 0 for an unknown one."""
        return self._served.get(tenant_id, 0.0)

    def prune(self, waiting: Container[UUID], *, now_s: float) -> None:
        """Forget tenants that do not wait and were not served since the last time, if it is due."""
        if now_s - self._pruned_s < KEEP_S:
            return
        before, self._pruned_s = self._at_last_prune, now_s
        self._served = {
            tenant_id: served
            for tenant_id, served in self._served.items()
            if tenant_id in waiting or served != before.get(tenant_id)
        }
        self._at_last_prune = dict(self._served)
