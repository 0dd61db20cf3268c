"""Answers that are given again: which tenants want that, and what their bill says of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from tenancy.errors import AnswersNotKeptError
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


def response_cache_ttls(connection: sa.Connection) -> dict[UUID, int]:
    """Return the tenants that want it, with the seconds that an answer may live."""
    query = sa.select(tenants.c.id, tenants.c.response_cache_ttl_s).where(
        tenants.c.response_cache_ttl_s.is_not(None), tenants.c.zero_retention.is_(False)
    )
    return {row.id: row.response_cache_ttl_s for row in connection.execute(query)}


def set_response_cache(connection: sa.Connection, tenant_id: UUID, ttl_s: int | None) -> None:
    """Let answers of a tenant live for `ttl_s` seconds, or turn that off with None.

    Raises AnswersNotKeptError for a tenant that retains nothing.
    """
    keeps_nothing = sa.select(tenants.c.zero_retention).where(tenants.c.id == tenant_id)
    if ttl_s is not None and connection.scalar(keeps_nothing.with_for_update(key_share=True)):
        raise AnswersNotKeptError
    values = {"response_cache_ttl_s": ttl_s}
    change_tenant(connection, tenant_id, values, values)


def add_cache_hits(connection: sa.Connection, hits: Mapping[CacheHits, int]) -> None:
    """Put requests without tokens on the bill: one row for each model version."""
    rows = [
        {
            "tenant_id": whose.tenant_id,
            "job_id": NO_JOB,
            "model": whose.model,
            "model_version": whose.model_version,
            "item_count": count,
            "input_tokens": 0,
            "output_tokens": 0,
            "cached_tokens": 0,
            "reasoning_tokens": 0,
        }
        for whose, count in hits.items()
    ]
    connection.execute(usage_ledger.insert(), rows)
