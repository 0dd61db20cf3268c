"""Reserved shares of pools: their form, and the bound on their sum over all tenants."""

import re
from collections.abc import Mapping
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from core.errors import Disposition, MillraceError
from core.tenant_claims import EVERY_POOL, RESERVED_MIN, RESERVED_TOTAL_MAX, reserved_share
from tenancy.tables import tenants

POOLS_MAX: Final = 100
"""Pools of which one tenant may reserve shares."""

_POOL: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}|\*")
_LOCK: Final = sa.text("SELECT pg_advisory_xact_lock(hashtextextended('reserved_shares', 0))")
_SHOWN_MAX: Final = 5  # tenants that an error names
_ROUNDING: Final = 1e-9


def check_reserved_shares(
    connection: sa.Connection, tenant_id: UUID, shares: Mapping[str, float]
) -> None:
    """Check the new shares of a tenant, by pool; `*` is every pool that it does not name.

    The shares of all tenants add up to `RESERVED_TOTAL_MAX` of a pool at most. Other callers wait
    for the end of this transaction, so two changes cannot exceed it together; a tenant that
    reserves nothing does not wait. Raises ReservedSharesError, which names the tenants that have
    most of the pool.
    """
    if len(shares) > POOLS_MAX:
        raise ReservedSharesError(f"reserved_shares: at most {POOLS_MAX} pools.")
    for pool, share in shares.items():
        if not _POOL.fullmatch(pool):
            raise ReservedSharesError("reserved_shares: a key is no name of a pool, and not '*'.")
        if share and not RESERVED_MIN <= share <= RESERVED_TOTAL_MAX:
            limits = f"0, or {RESERVED_MIN} to {RESERVED_TOTAL_MAX}"
            raise ReservedSharesError(f"reserved_shares: a share is {limits}.")
    if not any(shares.values()):
        return
    connection.execute(_LOCK)
    query = sa.select(tenants.c.name, tenants.c.reserved_shares).where(
        tenants.c.id != tenant_id,
        tenants.c.deleted_at.is_(None),
        tenants.c.reserved_shares != sa.literal_column("'{}'::jsonb"),
    )
    others = {row.name: row.reserved_shares for row in connection.execute(query)}
    for pool, total in sorted(_totals(shares, others).items()):
        share = reserved_share(shares, pool)
        if share and total + share > RESERVED_TOTAL_MAX + _ROUNDING:
            raise _too_much(pool, share, others)


def _totals(
    shares: Mapping[str, float], others: Mapping[str, Mapping[str, float]]
) -> dict[str, float]:
    """Return what others reserve of each pool that any tenant names, and of every other pool.

    One pass over their shares: there may be 850 tenants that name 100 pools each.
    """
    every = sum(one.get(EVERY_POOL, 0.0) for one in others.values())
    totals = dict.fromkeys([*shares, EVERY_POOL], every)
    for one in others.values():
        general = one.get(EVERY_POOL, 0.0)
        for pool, share in one.items():
            totals[pool] = totals.get(pool, every) + share - general
    return totals


def _too_much(
    pool: str, share: float, others: Mapping[str, Mapping[str, float]]
) -> "ReservedSharesError":
    """Return the error of a share that exceeds what others leave of a pool."""
    held = {name: reserved_share(one, pool) for name, one in others.items()}
    total = sum(held.values())
    most = sorted(held, key=lambda name: (-held[name], name))[:_SHOWN_MAX]
    named = ", ".join(f"{name} {held[name]:g}" for name in most if held[name])
    where = "every other pool" if pool == EVERY_POOL else f"pool {pool}"
    return ReservedSharesError(
        f"reserved_shares: {share:g} of {where} is too much: others have {total:g} of it"
        f" ({named}), and the sum is {RESERVED_TOTAL_MAX} at most."
    )


class ReservedSharesError(MillraceError):
    """The reserved shares of the tenant are not valid, or exceed what is left of a pool."""

    code = "tenant_refused"
    disposition = Disposition.REJECT
