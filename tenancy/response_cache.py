"""The response cache of tenants: its settings, and the ledger rows of cache hits."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from tenancy.installation_log import CLI_OPERATOR, Operator
from tenancy.tables import tenants, usage_ledger
from tenancy.tenants import ZeroRetentionConflictError, change_tenant

NO_JOB: Final = UUID(int=0)
"""The `job_id` of ledger rows without a job."""


TTL_S_MAX: Final = 86_400
"""Longest time to live of a cached answer: one day."""


@dataclass(frozen=True, slots=True)
class CacheHits:
    """The tenant and model version of cache hits."""

    tenant_id: UUID
    model: str
    model_version: str


@dataclass(frozen=True, slots=True)
class BilledCacheHits:
    """One ledger row; inserting it again has no effect."""

    row_id: int
    hits: CacheHits
    count: int


def billable_hits(hits: Mapping[CacheHits, int]) -> list[BilledCacheHits]:
    """Return one ledger row for each tenant and model version.

    Their ids are random and negative; the ledger's own ids are positive.
    """
    return [BilledCacheHits(-1 - secrets.randbits(63), *hit) for hit in hits.items()]


def read_response_cache_ttls(connection: sa.Connection) -> dict[UUID, int]:
    """Return the tenants with a response cache and the time to live of their answers, in s."""
    query = sa.select(tenants.c.id, tenants.c.response_cache_ttl_s).where(
        tenants.c.response_cache_ttl_s.is_not(None), tenants.c.zero_retention.is_(False)
    )
    return {row.id: row.response_cache_ttl_s for row in connection.execute(query)}


def set_response_cache(
    connection: sa.Connection,
    tenant_id: UUID,
    ttl_s: int | None,
    operator: Operator = CLI_OPERATOR,
) -> None:
    """Cache the answers of a tenant for `ttl_s` seconds; None turns the cache off.

    Raises ZeroRetentionConflictError for a tenant with zero retention.
    """
    is_zero_retention = sa.select(tenants.c.zero_retention).where(tenants.c.id == tenant_id)
    if ttl_s is not None and connection.scalar(is_zero_retention.with_for_update(key_share=True)):
        raise ZeroRetentionConflictError
    values = {"response_cache_ttl_s": ttl_s}
    change_tenant(connection, tenant_id, values, values, operator)


def record_cache_hits(connection: sa.Connection, bill: Sequence[BilledCacheHits]) -> None:
    """Insert ledger rows and skip existing ones: an earlier commit may have succeeded unnoticed."""
    rows = [
        {
            "id": billed.row_id,
            "tenant_id": billed.hits.tenant_id,
            "job_id": NO_JOB,
            "model": billed.hits.model,
            "model_version": billed.hits.model_version,
            "item_count": billed.count,
            "input_tokens": 0,
            "output_tokens": 0,
            "cached_tokens": 0,
            "reasoning_tokens": 0,
        }
        for billed in bill
    ]
    once = insert(usage_ledger).on_conflict_do_nothing(index_elements=[usage_ledger.c.id])
    connection.execute(once, rows)
