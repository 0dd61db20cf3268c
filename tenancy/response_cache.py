"""Answers that are given again: which tenants want that, and what their bill says of it."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from tenancy.errors import ZeroRetentionConflictError
from tenancy.tables import tenants, usage_ledger
from tenancy.tenants import change_tenant

NO_JOB: Final = UUID(int=0)
"""The job of a ledger row that no job stands behind."""


TTL_S_MAX: Final = 86_400
"""Longest time that an answer may live: a day."""


@dataclass(frozen=True, slots=True)
class CacheHits:
    """Whose question was answered again, and by which version's answer."""

    tenant_id: UUID
    model: str
    model_version: str


@dataclass(frozen=True, slots=True)
class BilledCacheHits:
    """One row of the ledger, the same however often it is put there."""

    row_id: int
    whose: CacheHits
    count: int


def billable_hits(hits: Mapping[CacheHits, int]) -> list[BilledCacheHits]:
    """Return the rows of requests without tokens: one for each model version.

    Their ids are random and below zero, where the ledger's own count never comes.
    """
    return [BilledCacheHits(-1 - secrets.randbits(63), *hit) for hit in hits.items()]


def read_response_cache_ttls(connection: sa.Connection) -> dict[UUID, int]:
    """Return the tenants that want it, with the seconds that an answer may live."""
    query = sa.select(tenants.c.id, tenants.c.response_cache_ttl_s).where(
        tenants.c.response_cache_ttl_s.is_not(None), tenants.c.zero_retention.is_(False)
    )
    return {row.id: row.response_cache_ttl_s for row in connection.execute(query)}


def set_response_cache(connection: sa.Connection, tenant_id: UUID, ttl_s: int | None) -> None:
    """Let answers of a tenant live for `ttl_s` seconds, or turn that off with None.

    Raises ZeroRetentionConflictError for a tenant that retains nothing.
    """
    keeps_nothing = sa.select(tenants.c.zero_retention).where(tenants.c.id == tenant_id)
    if ttl_s is not None and connection.scalar(keeps_nothing.with_for_update(key_share=True)):
        raise ZeroRetentionConflictError
    values = {"response_cache_ttl_s": ttl_s}
    change_tenant(connection, tenant_id, values, values)


def record_cache_hits(connection: sa.Connection, bill: Sequence[BilledCacheHits]) -> None:
    """Put rows on the ledger, but for those that are there: a commit may not have been heard of."""
    rows = [
        {
            "id": billed.row_id,
            "tenant_id": billed.whose.tenant_id,
            "job_id": NO_JOB,
            "model": billed.whose.model,
            "model_version": billed.whose.model_version,
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
