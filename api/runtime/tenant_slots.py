"""Slots for what only so many may do at once: a tenant has half of them, others the rest."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID

from api import metrics
from api.http.responses import ApiError, unavailable


class TenantSlots:
    """How many requests of one kind run at once, in all and of one tenant.

    More are refused, not queued, and told when to come again.
    """

    def __init__(
        self, name: str, count_max: int, *, kind: str = "", retry_after_s: int = 5
    ) -> None:
        """All are free; `name` is the kind in metrics, `kind` in answers, where it differs."""
        self._name, self._kind, self._retry_after_s = name, kind or name, retry_after_s
        self._count_max, self._of_tenant_max = count_max, tenant_share(count_max)
        self._count = 0
        self._of_tenant: Counter[UUID] = Counter()

    @contextmanager
    def one(self, tenant_id: UUID) -> Iterator[None]:
        """Take one until the block ends.

        Raises ApiError: 503 when none is free, 429 when those that are free are for others.
        """
        with self.unclaimed() as claim:
            claim(tenant_id)
            yield

    @contextmanager
    def unclaimed(self) -> Iterator[Callable[[UUID], None]]:
        """Take one until the block ends, and yield what takes its tenant once that is known.

        Raises ApiError (503). What is yielded raises ApiError (429), and is called once.
        """
        if self._count >= self._count_max:
            raise self._none_free()
        self._count += 1
        claims: list[UUID] = []
        try:
            yield lambda tenant_id: self._claim(tenant_id, claims)
        finally:
            self._count -= 1
            for tenant_id in claims:
                self._of_tenant[tenant_id] -= 1
                if not self._of_tenant[tenant_id]:
                    del self._of_tenant[tenant_id]

    def _claim(self, tenant_id: UUID, claims: list[UUID]) -> None:
        if self._of_tenant[tenant_id] >= self._of_tenant_max:
            raise self._none_left()
        self._of_tenant[tenant_id] += 1
        claims.append(tenant_id)

    def _none_free(self) -> ApiError:
        metrics.SHED.labels(self._name).inc()
        return unavailable(
            f"Too many {self._kind} at once.", retry_after_s=self._retry_after_s, code="slow_down"
        )

    def _none_left(self) -> ApiError:
        metrics.SHED.labels(self._name).inc()
        return ApiError(
            429,
            f"Your organization has too many {self._kind} at once.",
            kind="rate_limit_exceeded",
            code="slow_down",
            headers={"retry-after": str(self._retry_after_s)},
        )


def tenant_share(count_max: int) -> int:
    """Return how much of something one tenant may hold: half, rounded up."""
    return (count_max + 1) // 2
