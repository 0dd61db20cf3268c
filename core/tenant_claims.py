"""What each tenant is due of a pool: its weight, its reserved share and its priority class. Pure.

    shares of a pool ─► reserved shares and trickles of lower classes ─► the rest by weight, in the
                        highest class that has work

A share that is not used is divided among the others: all shares are of the tenants with work.
"""

from collections.abc import Hashable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)


class PriorityClass(StrEnum):
    """The priority class of a tenant; a higher class is served before lower ones."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"

    @property
    def number(self) -> int:
        """Its number in records; the lowest is served first."""
        return _NUMBERS[self]


_NUMBERS: Final = {PriorityClass.HIGH: 0, PriorityClass.NORMAL: 1, PriorityClass.LOW: 2}

NORMAL_CLASS: Final = 1
"""The number of the class that every tenant has at first."""

TRICKLE_SHARE: Final = 0.05
"""What each lower class with work gets of a pool while a higher class has work."""

RESERVED_TOTAL_MAX: Final = 0.85
"""Largest sum of the reserved shares of one pool. The trickles of two classes take 0.1, so 0.05 are
left for tenants of the highest class without a reserved share."""

RESERVED_MIN: Final = 0.001
"""Smallest reserved share, so that one pool has 850 of them at most."""

EVERY_POOL: Final = "*"
"""The name under which a share of every pool is reserved that has no share of its own."""


class TenantClaim(NamedTuple):
    """What a tenant is due of one pool."""

    weight: int = 1  # among the tenants of its class
    reserved: float = 0.0  # fraction of the pool's tokens, whatever its class
    tenant_class: int = NORMAL_CLASS  # number of its priority class


PLAIN_CLAIM: Final = TenantClaim()


def reserved_share(shares: Mapping[str, float], pool: str) -> float:
    """Return the fraction that a tenant with these reserved shares has of a pool."""
    found = shares.get(pool)
    return shares.get(EVERY_POOL, 0.0) if found is None else found


def effective_weights(claims: Mapping[K, TenantClaim]) -> dict[K, float]:
    """Return weights of which each tenant's part is what it is due, while all of them have work.

    Each lower class gets `TRICKLE_SHARE`, by weight. A tenant whose part by weight would be less
    than its reserved share gets this share. Tenants of the highest class without one keep their
    weights. Reserved shares of more than `RESERVED_TOTAL_MAX` in all are reduced to it in
    proportion: rows that are changed at the same time may say so for a moment.
    """
    if _only_weights_count(claims):
        return {key: float(claim.weight) for key, claim in claims.items()}
    total = sum(claim.reserved for claim in claims.values())
    scale = min(1.0, RESERVED_TOTAL_MAX / total) if total else 1.0
    reserved = {key: claim.reserved * scale for key, claim in claims.items()}
    top = min(claim.tenant_class for claim in claims.values())
    fixed = _lower_shares(claims, reserved, top)
    weights = {key: claim.weight for key, claim in claims.items() if key not in fixed}
    left, weight_left = 1.0 - sum(fixed.values()), sum(weights.values())
    for key in sorted(weights, key=lambda key: weights[key] / max(reserved[key], 1e-9)):
        if weights[key] * left >= reserved[key] * weight_left:
            break
        fixed[key] = reserved[key]
        left -= reserved[key]
        weight_left -= weights[key]
    # The weight of the whole pool; any number does if no tenant keeps its weight.
    unit = weight_left / left if weight_left else float(sum(c.weight for c in claims.values()))
    return {key: fixed[key] * unit if key in fixed else float(weights[key]) for key in claims}


def whole_weights(claims: Mapping[K, TenantClaim]) -> dict[K, int]:
    """Return effective weights as whole numbers, for shares of items."""
    if _only_weights_count(claims):
        return {key: claim.weight for key, claim in claims.items()}
    return {key: max(1, round(1000 * n)) for key, n in effective_weights(claims).items()}


def _only_weights_count(claims: Mapping[K, TenantClaim]) -> bool:
    """Whether all tenants are of one class and none has a reserved share."""
    is_reserved = any(claim.reserved for claim in claims.values())
    return not is_reserved and len({claim.tenant_class for claim in claims.values()}) <= 1


def _lower_shares(
    claims: Mapping[K, TenantClaim], reserved: Mapping[K, float], top: int
) -> dict[K, float]:
    """Return the shares of the tenants that are not in the highest class."""
    totals: dict[int, int] = {}
    for claim in claims.values():
        totals[claim.tenant_class] = totals.get(claim.tenant_class, 0) + claim.weight
    return {
        key: max(reserved[key], TRICKLE_SHARE * claim.weight / totals[claim.tenant_class])
        for key, claim in claims.items()
        if claim.tenant_class != top
    }
