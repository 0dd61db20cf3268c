"""Pages of tenants and of their keys, for operators."""

from collections.abc import Collection
from typing import Any, Final, TypeAlias
from uuid import UUID

import sqlalchemy as sa

from tenancy.tables import api_keys, tenants

ListedPage: TypeAlias = tuple[list[sa.Row[Any]], bool]
"""Rows, newest first, and whether more follow."""

_TENANT_COLUMNS: Final = (
    tenants.c.id,
    tenants.c.name,
    tenants.c.stored_bytes_max,
    tenants.c.response_cache_ttl_s,
    tenants.c.zero_retention,
    tenants.c.call_timeout_ms,
    tenants.c.weight,
    tenants.c.reserved_shares,
    tenants.c.priority_class,
    tenants.c.bulk_hours,
    tenants.c.infeasible_jobs,
    tenants.c.degraded_output_tokens_max,
    tenants.c.degraded_model,
    tenants.c.created_at,
)
_KEPT: Final = tenants.c.deleted_at.is_(None)
_KEY_COLUMNS: Final = (
    api_keys.c.id,
    api_keys.c.tenant_id,
    tenants.c.name.label("tenant"),
    api_keys.c.name,
    api_keys.c.hint,
    api_keys.c.created_at,
    api_keys.c.revoked_at,
)


def tenant_row(connection: sa.Connection, tenant_id: UUID) -> sa.Row[Any] | None:
    """Return a tenant with its limits, or None."""
    query: sa.Select[Any] = sa.select(*_TENANT_COLUMNS).where(tenants.c.id == tenant_id, _KEPT)
    return connection.execute(query).one_or_none()


def tenants_by_id(connection: sa.Connection, tenant_ids: Collection[UUID]) -> dict[UUID, Any]:
    """Return those of the tenants that are not deleted, with their limits."""
    query = sa.select(*_TENANT_COLUMNS).where(tenants.c.id.in_(tenant_ids), _KEPT)
    return {row.id: row for row in connection.execute(query)}


def key_row(connection: sa.Connection, key_id: UUID) -> sa.Row[Any] | None:
    """Return a key without its hash, or None."""
    return connection.execute(_keys_query().where(api_keys.c.id == key_id)).one_or_none()


def list_tenants(
    connection: sa.Connection,
    *,
    name: str | None = None,
    after: UUID | None = None,
    limit: int | None = None,
) -> ListedPage | None:
    """Return a page of the tenants, or the one with that name; None: unknown `after`.

    Without `limit` it is all of them.
    """
    query = sa.select(*_TENANT_COLUMNS).where(_KEPT)
    if name is not None:
        query = query.where(tenants.c.name == name)
    return _page(connection, query, tenants, after=after, limit=limit)


def list_keys(
    connection: sa.Connection,
    *,
    tenant_id: UUID | None,
    with_revoked: bool,
    after: UUID | None = None,
    limit: int | None = None,
) -> ListedPage | None:
    """Return a page of the keys of a tenant, or of all; None: unknown `after`.

    Without `limit` it is all of them.
    """
    query = _keys_query()
    if tenant_id is not None:
        query = query.where(api_keys.c.tenant_id == tenant_id)
    if not with_revoked:
        query = query.where(api_keys.c.revoked_at.is_(None))
    return _page(connection, query, api_keys, after=after, limit=limit)


def _keys_query() -> sa.Select[Any]:
    return sa.select(*_KEY_COLUMNS).join(tenants, tenants.c.id == api_keys.c.tenant_id)


def _page(
    connection: sa.Connection,
    query: sa.Select[Any],
    table: sa.Table,
    *,
    after: UUID | None,
    limit: int | None,
) -> ListedPage | None:
    place = (table.c.created_at, table.c.id)
    if after is not None:
        last = connection.execute(sa.select(*place).where(table.c.id == after)).one_or_none()
        if last is None:
            return None
        literals = [sa.literal(value, one.type) for value, one in zip(last, place, strict=True)]
        query = query.where(sa.tuple_(*place) < sa.tuple_(*literals))
    query = query.order_by(*(column.desc() for column in place))
    if limit is None:
        return list(connection.execute(query)), False
    rows = list(connection.execute(query.limit(limit + 1)))
    return rows[:limit], len(rows) > limit
