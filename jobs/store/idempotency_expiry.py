"""Finds and deletes expired idempotency keys."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from jobs.tables.idempotency import idempotency_keys

_KEYS: Final = idempotency_keys.c
_PRIMARY: Final = (_KEYS.tenant_id, _KEYS.scope, _KEYS.key)


@dataclass(frozen=True, slots=True)
class ExpiredIdempotencyKey:
    """An expired key and the object of its answer."""

    tenant_id: UUID
    scope: str
    key: str
    expires_at: datetime
    body_key: str | None


def find_expired_keys(
    connection: sa.Connection, limit: int, *, excluding: Collection[str] = ()
) -> list[ExpiredIdempotencyKey]:
    """Return expired keys, oldest first, except those whose object is in `excluding`.

    Delete their objects before the keys.
    """
    columns = [*_PRIMARY, _KEYS.expires_at, _KEYS.body_key]
    query = sa.select(*columns).where(_KEYS.expires_at <= sa.func.now())
    if excluding:
        others = _KEYS.body_key != sa.all_(sa.literal(list(excluding), sa.ARRAY(sa.Text)))
        query = query.where(sa.or_(_KEYS.body_key.is_(None), others))
    rows = connection.execute(query.order_by(_KEYS.expires_at).limit(limit))
    return [ExpiredIdempotencyKey(*row) for row in rows]


def delete_expired_keys(connection: sa.Connection, expired: list[ExpiredIdempotencyKey]) -> int:
    """Delete expired keys, except those claimed again in the meantime; return how many."""
    same = sa.tuple_(*_PRIMARY, _KEYS.expires_at).in_(
        [(key.tenant_id, key.scope, key.key, key.expires_at) for key in expired]
    )
    return connection.execute(sa.delete(idempotency_keys).where(same)).rowcount
