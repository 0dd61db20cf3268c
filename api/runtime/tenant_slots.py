"""Limits on concurrent requests that tenants share: one tenant may use half of the slots."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID

from api import metrics
from api.http.errors import ApiError, unavailable


class TenantSlots:
    """A number of slots for requests of one kind. Requests beyond it are refused, not queued."""

    def __init__(
        self, name: str, count_max: int, *, kind: str = "", retry_after_s: int = 5
    ) -> None:
        """`name` is the kind in metrics; `kind` in error messages, if it differs."""
        self._name, self._kind, self._retry_after_s = name, kind or name, retry_after_s
        self._count_max, self._tenant_max = count_max, tenant_share(count_max)
        self._count = 0
        self._count_by_tenant: Counter[UUID] = Counter()

    @contextmanager
    def acquire(self, tenant_id: UUID) -> Iterator[None]:
        """Acquire a slot until the block ends.

        Raises ApiError: 503 when no slot is free, 429 when the tenant uses its share.
        """
        with self.acquire_unassigned() as assign_tenant:
            assign_tenant(tenant_id)
            yield

    @contextmanager
    def acquire_unassigned(self) -> Iterator[Callable[[UUID], None]]:
        """Acquire a slot until the block ends, and yield a function that assigns it to a tenant.

        Raises ApiError (503). The function is called once and raises ApiError (429).
        """
        if self._count >= self._count_max:
            metrics.SHED.labels(self._name).inc()
            message = f"Too many {self._kind} at once."
            raise unavailable(message, retry_after_s=self._retry_after_s, code="slow_down")
        self._count += 1
        assigned: list[UUID] = []
        try:
            yield lambda tenant_id: self._assign(tenant_id, assigned)
        finally:
            self._count -= 1
            for tenant_id in assigned:
                self._count_by_tenant[tenant_id] -= 1
                if not self._count_by_tenant[tenant_id]:
                    del self._count_by_tenant[tenant_id]

    def _assign(self, tenant_id: UUID, assigned: list[UUID]) -> None:
        if self._count_by_tenant[tenant_id] >= self._tenant_max:
            metrics.SHED.labels(self._name).inc()
            raise ApiError(
                429,
                f"Your organization has too many {self._kind} at once.",
                kind="rate_limit_exceeded",
                code="slow_down",
                headers={"retry-after": str(self._retry_after_s)},
            )
        self._count_by_tenant[tenant_id] += 1
        assigned.append(tenant_id)


def tenant_share(count_max: int) -> int:
    """Return how much of a limit one tenant may use: half, rounded up."""
    return (count_max + 1) // 2
