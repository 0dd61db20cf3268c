"""The open calls of this process by pool and tenant, for the shares of tenants."""

from collections import Counter
from uuid import UUID

from topics.records.records import JobRef


class PoolUsage:
    """Counts calls, and sums the weights of the tenants that have any. Each change is O(1)."""

    def __init__(self) -> None:
        self._calls: Counter[tuple[str, UUID]] = Counter()
        self._weights: dict[tuple[str, UUID], int] = {}  # of tenants with calls
        self._weight_sums: Counter[str] = Counter()

    def add(self, job: JobRef) -> None:
        """Count a call."""
        key = (job.pool, job.tenant_id)
        self._calls[key] += 1
        if key not in self._weights:
            self._weights[key] = job.weight
            self._weight_sums[job.pool] += job.weight

    def remove(self, job: JobRef) -> None:
        """Stop counting a call that was added."""
        key = (job.pool, job.tenant_id)
        self._calls[key] -= 1
        if not self._calls[key]:
            del self._calls[key]
            self._weight_sums[job.pool] -= self._weights.pop(key)

    def call_count(self, pool: str, tenant_id: UUID) -> int:
        """Return the open calls of a tenant in a pool."""
        return self._calls[pool, tenant_id]

    def weights(self, pool: str, tenant_id: UUID, weight: int) -> int:
        """Return the sum of the weights of the tenants with calls in a pool, and of this one."""
        present = (pool, tenant_id) in self._weights
        return self._weight_sums[pool] + (0 if present else weight)
