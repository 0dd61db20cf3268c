"""Reads the audit log: pages of entries, and verification of the hash chains."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from core.ids import public_id
from tenancy.audit_log import ENTRY, entry_hash, first_hash
from tenancy.tables import audit_heads, audit_log

_WINDOW_ROWS: Final = 5000


@dataclass(frozen=True, slots=True)
class ChainHead:
    """The last hash of a tenant's chain at some moment; stored elsewhere it is an anchor."""

    tenant_id: UUID
    sequence: int
    hash: bytes


@dataclass(frozen=True, slots=True)
class ChainMismatch:
    """The first entry that does not match, and the reason."""

    sequence: int
    reason: str


@dataclass(frozen=True, slots=True)
class ChainCheck:
    """The result of verifying a tenant's chain."""

    head: ChainHead  # of the matching entries
    mismatch: ChainMismatch | None = None


def read_entries(
    connection: sa.Connection, tenant_id: UUID, *, after: UUID | None, limit: int
) -> tuple[list[sa.Row[Any]], bool] | None:
    """Return a tenant's entries, newest first, and whether more follow; None: unknown `after`."""
    query = sa.select(audit_log).where(audit_log.c.tenant_id == tenant_id)
    if after is not None:
        after_sequence = connection.scalar(
            sa.select(audit_log.c.sequence).where(
                audit_log.c.id == after, audit_log.c.tenant_id == tenant_id
            )
        )
        if after_sequence is None:
            return None
        query = query.where(audit_log.c.sequence < after_sequence)
    query = query.order_by(audit_log.c.sequence.desc()).limit(limit + 1)
    rows = list(connection.execute(query).all())
    return rows[:limit], len(rows) > limit


def entry_fields(row: Any) -> dict[str, object]:
    """Return the public fields of an entry, except its time: the API shows whole seconds."""
    return {
        "id": public_id(ENTRY, row.id),
        "sequence": row.sequence,
        "actor": row.actor,
        "action": row.action,
        "subject": row.subject,
        "details": row.details,
        "previous_hash": row.previous_hash.hex(),
        "hash": row.hash.hex(),
    }


def read_chain_heads(connection: sa.Connection, tenant_id: UUID | None = None) -> list[ChainHead]:
    """Return the chain heads of all tenants with entries, or of one tenant."""
    query = sa.select(audit_heads).order_by(audit_heads.c.tenant_id)
    if tenant_id is not None:
        query = query.where(audit_heads.c.tenant_id == tenant_id)
    return [ChainHead(row.tenant_id, row.sequence, row.hash) for row in connection.execute(query)]


def find_chains(connection: sa.Connection) -> list[UUID]:
    """Return the tenants with entries or a head; a chain may have lost its head."""
    rows = sa.select(audit_log.c.tenant_id).union(sa.select(audit_heads.c.tenant_id))
    return sorted(connection.scalars(rows), key=lambda tenant_id: tenant_id.hex)


def verify_chain(
    connection: sa.Connection, tenant_id: UUID, anchors: Mapping[int, Collection[bytes]]
) -> ChainCheck:
    """Recompute a tenant's chain; `anchors` are hashes by sequence that were stored elsewhere.

    Every anchor of a sequence must match, so two different ones never do. Run it in a REPEATABLE
    READ transaction, because other transactions keep adding entries.
    """
    heads = read_chain_heads(connection, tenant_id)
    last = heads[0] if heads else ChainHead(tenant_id, 0, first_hash(tenant_id))
    return verify_entries(last, _rows(connection, tenant_id), anchors)


def verify_entries(
    last: ChainHead, rows: Iterable[Any], anchors: Mapping[int, Collection[bytes]]
) -> ChainCheck:
    """Verify rows in sequence order against the stored head and the anchors."""
    tenant_id = last.tenant_id
    known = ChainHead(tenant_id, 0, first_hash(tenant_id))
    for row in rows:
        expected = known.sequence + 1
        if row.sequence != expected:
            return ChainCheck(known, ChainMismatch(expected, "the row is missing"))
        if row.previous_hash != known.hash:
            return ChainCheck(known, ChainMismatch(expected, "it does not follow the row before"))
        if row.hash != entry_hash(row, known.hash):
            return ChainCheck(known, ChainMismatch(expected, "its content is not what was sealed"))
        if any(anchor != row.hash for anchor in anchors.get(expected, ())):
            return ChainCheck(known, ChainMismatch(expected, "the anchor says otherwise"))
        known = ChainHead(tenant_id, expected, row.hash)
    beyond = max(anchors, default=0)
    if max(beyond, last.sequence) > known.sequence:
        return ChainCheck(known, ChainMismatch(known.sequence + 1, "the row is missing"))
    if (last.sequence, last.hash) != (known.sequence, known.hash):
        return ChainCheck(known, ChainMismatch(known.sequence, "the head says otherwise"))
    return ChainCheck(known)


def _rows(connection: sa.Connection, tenant_id: UUID) -> Iterator[sa.Row[Any]]:
    sequence = 0
    while True:
        query = (
            sa.select(audit_log)
            .where(audit_log.c.tenant_id == tenant_id, audit_log.c.sequence > sequence)
            .order_by(audit_log.c.sequence)
            .limit(_WINDOW_ROWS)
        )
        rows = connection.execute(query).all()
        yield from rows
        if len(rows) < _WINDOW_ROWS:
            return
        sequence = rows[-1].sequence
