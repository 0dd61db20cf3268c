"""The weights of tenants: each one's share of a pool, in relation to those of the others."""

from typing import Final
from uuid import UUID

import sqlalchemy as sa

from core.clock import Clock
from tenancy.tables import tenants

_REFRESH_S: Final = 2.0
_QUERY: Final = sa.select(tenants.c.id, tenants.c.weight).where(tenants.c.weight != 1)


class TenantWeights:
    """The weights as they were two seconds ago or later. One thread refreshes, any may read."""

    def __init__(self, engine: sa.Engine, clock: Clock) -> None:
        """Every tenant has weight 1 until the first `refresh`."""
        self._engine, self._clock = engine, clock
        self._weights: dict[UUID, int] = {}
        self._due_s = float("-inf")

    def refresh(self) -> None:
        """Read the weights again if it is time. Raises one of DATABASE_UNAVAILABLE."""
        now_s = self._clock.monotonic_s()
        if now_s < self._due_s:
            return
        with self._engine.connect() as connection:
            self._weights = {row.id: row.weight for row in connection.execute(_QUERY)}
        self._due_s = now_s + _REFRESH_S

    def learn(self, tenant_id: UUID, weight: int) -> None:
        """Note a weight that was read with a job, so later than the others."""
        self._weights[tenant_id] = weight

    def weight(self, tenant_id: UUID) -> int:
        """Return the weight of a tenant."""
        return self._weights.get(tenant_id, 1)
