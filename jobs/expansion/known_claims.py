"""What tenants are due of pools, as their rows say: weights, reserved shares, priority classes."""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias
from uuid import UUID

import sqlalchemy as sa

from core.clock import Clock
from core.tenant_claims import PLAIN_CLAIM, PriorityClass, TenantClaim, reserved_share
from tenancy.tables import tenants
from topics.records.records import JobRef

ClaimOf: TypeAlias = Callable[[UUID, str], TenantClaim]
"""Returns the claim of a tenant on a pool."""

CLAIM_COLUMNS: Final = (tenants.c.weight, tenants.c.reserved_shares, tenants.c.priority_class)

_REFRESH_S: Final = 2.0
_NO_SHARES: Final[sa.ColumnElement[Any]] = sa.literal_column("'{}'::jsonb")
_NORMAL: Final = PriorityClass.NORMAL.value
_QUERY: Final = sa.select(tenants.c.id, *CLAIM_COLUMNS).where(
    sa.or_(
        tenants.c.weight != 1,
        tenants.c.reserved_shares != _NO_SHARES,
        tenants.c.priority_class != _NORMAL,
    )
)


def claim_in(row: Any, pool: str) -> TenantClaim:
    """Return the claim on a pool in a row with `CLAIM_COLUMNS`."""
    shares: Mapping[str, float] = row.reserved_shares
    number = PriorityClass(row.priority_class).number
    return TenantClaim(row.weight, reserved_share(shares, pool), number)


class KnownClaims:
    """The claims as they were two seconds ago or later. One thread refreshes, any may read."""

    def __init__(self, engine: sa.Engine, clock: Clock) -> None:
        """Every tenant has a plain claim until the first `refresh`."""
        self._engine, self._clock = engine, clock
        self._rows: dict[UUID, Any] = {}
        self._newer: dict[tuple[UUID, str], TenantClaim] = {}
        self._due_s = float("-inf")

    def refresh(self) -> None:
        """Read the claims again if it is time. Raises one of DATABASE_UNAVAILABLE."""
        now_s = self._clock.monotonic_s()
        if now_s < self._due_s:
            return
        with self._engine.connect() as connection:
            rows: dict[UUID, Any] = {row.id: row for row in connection.execute(_QUERY)}
        self._rows, self._newer = rows, {}
        self._due_s = now_s + _REFRESH_S

    def learn(self, ref: JobRef) -> None:
        """Note a claim that was read with a job, so later than the others."""
        claim = TenantClaim(ref.weight, ref.reserved, ref.tenant_class)
        self._newer[ref.tenant_id, ref.pool] = claim

    def claim(self, tenant_id: UUID, pool: str) -> TenantClaim:
        """Return the claim of a tenant on a pool."""
        if (newer := self._newer.get((tenant_id, pool))) is not None:
            return newer
        row = self._rows.get(tenant_id)
        return PLAIN_CLAIM if row is None else claim_in(row, pool)
