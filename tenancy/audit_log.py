"""What was done, by whom and when: rows that are only ever added, each sealed into the next.

A tenant's rows are a chain: a row's hash covers its content and the hash of the row before. So
nobody can change, drop or insert one without changing every hash behind it, and the last of them
is the head. Rows name things by their ids; nothing here is a secret or anything that users wrote.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, TypeAlias
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from core.ids import KEY, new_uuid, public_id
from tenancy.audit_tables import audit_heads, audit_log

ENTRY: Final = "audit"
"""Prefix of the public ids of rows."""

CLI: Final = "cli"
"""The actor of what an operator did with the command line."""

Details: TypeAlias = Mapping[str, str | int | bool | list[str] | None]

_FORM: Final = "millrace audit log 1"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Action(StrEnum):
    """What was done."""

    TENANT_CREATED = "tenant.created"
    TENANT_UPDATED = "tenant.updated"
    KEY_CREATED = "key.created"
    KEY_REVOKED = "key.revoked"
    JOB_CREATED = "job.created"
    JOB_CANCELLED = "job.cancelled"
    JOB_PAUSED = "job.paused"
    JOB_RESUMED = "job.resumed"
    JOB_UPDATED = "job.updated"
    JOB_APPENDED = "job.appended"
    JOB_SEALED = "job.sealed"
    JOB_DELETED = "job.deleted"
    JOB_REBUILT = "job.rebuilt"
    ITEMS_REDRIVEN = "items.redriven"
    REQUEST_CANCELLED = "request.cancelled"
    FILE_DELETED = "file.deleted"
    ENDPOINT_CREATED = "webhook_endpoint.created"
    ENDPOINT_CHANGED = "webhook_endpoint.changed"
    ENDPOINT_DELETED = "webhook_endpoint.deleted"
    SECRET_ROTATED = "webhook_secret.rotated"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """One operation that was accepted."""

    tenant_id: UUID
    actor: str  # a key's public id, or CLI
    action: Action
    subject: str  # the public id of what it was done to
    details: Details = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedEntry:
    """What the hash of a row covers, beside the hash before it."""

    tenant_id: UUID
    sequence: int
    at: datetime
    actor: str
    action: str
    subject: str
    details: Details


def key_actor(key_id: UUID) -> str:
    """Return the actor of what was asked for with an API key."""
    return public_id(KEY, key_id)


def record_audit_event(connection: sa.Connection, act: AuditEvent) -> None:
    """Add the row of an act, as the last statement of its transaction.

    It holds the tenant's head until the commit, so acts of one tenant are put in line; whoever
    locked anything else after it could wait for somebody who waits for the head.
    """
    head = _locked_head(connection, act.tenant_id)
    sealed = SealedEntry(
        tenant_id=act.tenant_id,
        sequence=head.sequence + 1,
        at=head.now,
        actor=act.actor,
        action=act.action.value,
        subject=act.subject,
        details=dict(act.details),
    )
    digest = entry_hash(sealed, head.hash)
    moved = (
        sa.update(audit_heads)
        .where(audit_heads.c.tenant_id == act.tenant_id)
        .values(sequence=sealed.sequence, hash=digest)
        .returning(audit_heads.c.tenant_id)
        .cte("moved")
    )
    row = audit_log.insert().values(
        id=new_uuid(),
        tenant_id=sealed.tenant_id,
        sequence=sealed.sequence,
        created_at=sealed.at,
        actor=sealed.actor,
        action=sealed.action,
        subject=sealed.subject,
        details=sealed.details,
        previous_hash=head.hash,
        hash=digest,
    )
    connection.execute(row.add_cte(moved))


def entry_hash(sealed: SealedEntry, previous: bytes) -> bytes:
    """Return the SHA-256 that seals a row; times count in whole microseconds."""
    content = json.dumps(
        [
            _FORM,
            previous.hex(),
            sealed.tenant_id.hex,
            sealed.sequence,
            (sealed.at - _EPOCH) // timedelta(microseconds=1),
            sealed.actor,
            sealed.action,
            sealed.subject,
            sealed.details,
        ],
        ensure_ascii=True,
        sort_keys=True,
        separators=(",", ":"),
    )
    return hashlib.sha256(content.encode()).digest()


def first_hash(tenant_id: UUID) -> bytes:
    """Return the hash before a tenant's first row."""
    return hashlib.sha256(f"{_FORM} {tenant_id.hex}".encode()).digest()


def _locked_head(connection: sa.Connection, tenant_id: UUID) -> sa.Row[Any]:
    query = (
        sa.select(
            audit_heads.c.sequence,
            audit_heads.c.hash,
            # The moment of the lock: so times never run against the order.
            sa.func.clock_timestamp(type_=sa.DateTime(timezone=True)).label("now"),
        )
        .where(audit_heads.c.tenant_id == tenant_id)
        .with_for_update()
    )
    head = connection.execute(query).one_or_none()
    if head is None:
        connection.execute(
            insert(audit_heads)
            .values(tenant_id=tenant_id, sequence=0, hash=first_hash(tenant_id))
            .on_conflict_do_nothing()
        )
        head = connection.execute(query).one()
    return head
