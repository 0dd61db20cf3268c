"""The audit log: append-only entries with action, actor and time, linked by hashes.

The entries of a tenant form a hash chain: the hash of an entry covers its content and the hash of
the previous entry, and the last hash is the head. Changing, deleting or inserting an entry changes
every later hash. Entries refer to objects by id; they contain no secret and no user content.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, TypeAlias
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from core.ids import KEY, new_uuid, public_id
from tenancy.tables import audit_heads, audit_log

ENTRY: Final = "audit"
"""Prefix of the public ids of entries."""

CLI: Final = "cli"
"""The actor of operations by the command line."""

SYSTEM: Final = "system"
"""The actor of what the installation does by itself."""

Details: TypeAlias = Mapping[str, str | int | bool | list[str] | None]

_FORM: Final = "millrace audit log 1"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Action(StrEnum):
    """An audited operation."""

    TENANT_CREATED = "tenant.created"
    TENANT_UPDATED = "tenant.updated"
    TENANT_DELETED = "tenant.deleted"
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
    REQUEST_DELETED = "request.deleted"
    FILE_DELETED = "file.deleted"
    ENDPOINT_CREATED = "webhook_endpoint.created"
    ENDPOINT_CHANGED = "webhook_endpoint.changed"
    ENDPOINT_DELETED = "webhook_endpoint.deleted"
    SECRET_ROTATED = "webhook_secret.rotated"
    OPERATOR_KEY_CREATED = "operator_key.created"
    OPERATOR_KEY_REVOKED = "operator_key.revoked"
    QUARANTINE_STARTED = "quarantine.started"
    QUARANTINE_ENDED = "quarantine.ended"
    MODEL_REGISTERED = "model.registered"
    MODEL_RETIRED = "model.retired"
    MODEL_REFUSED = "model.refused"
    MODEL_OBJECTS_REMOVED = "model.objects_removed"
    MODEL_ALIAS_SET = "model_alias.set"
    MODEL_NAME_REMOVED = "model_name.removed"
    MODEL_KEY_ADDED = "model_key.added"
    MODEL_KEY_REVOKED = "model_key.revoked"
    MODELS_REPUBLISHED = "models.republished"
    TOPICS_CREATED = "topics.created"
    INSTALLATION_RECOVERED = "installation.recovered"


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedEntry:
    """The content of an entry that its hash covers, together with the previous hash."""

    tenant_id: UUID
    sequence: int
    created_at: datetime
    actor: str
    action: str
    subject: str
    details: Details


def key_actor(key_id: UUID) -> str:
    """Return the actor of requests with an API key."""
    return public_id(KEY, key_id)


def record_audit_event(
    connection: sa.Connection,
    *,
    tenant_id: UUID,
    actor: str,
    action: Action,
    subject: str,
    details: Details | None = None,
) -> None:
    """Insert the entry of an accepted operation, as the last statement of its transaction.

    `actor` is the public id of an API or operator key, `CLI` or `SYSTEM`; `subject` that of the
    object. It locks the tenant's head until the commit, which serialises the events of a tenant. A
    lock taken after it could deadlock with a transaction that waits for the head.
    """
    head = _lock_head(connection, tenant_id)
    entry = SealedEntry(
        tenant_id=tenant_id,
        sequence=head.sequence + 1,
        created_at=head.now,
        actor=actor,
        action=action.value,
        subject=subject,
        details=dict(details or {}),
    )
    digest = entry_hash(entry, head.hash)
    advanced = (
        sa.update(audit_heads)
        .where(audit_heads.c.tenant_id == tenant_id)
        .values(sequence=entry.sequence, hash=digest)
        .returning(audit_heads.c.tenant_id)
        .cte("advanced")
    )
    row = audit_log.insert().values(
        id=new_uuid(), **asdict(entry), previous_hash=head.hash, hash=digest
    )
    connection.execute(row.add_cte(advanced))


def entry_hash(entry: SealedEntry | Any, previous: bytes) -> bytes:
    """Return the SHA-256 of an entry or of its row; its time counts in whole microseconds."""
    content = json.dumps(
        [
            _FORM,
            previous.hex(),
            entry.tenant_id.hex,
            entry.sequence,
            (entry.created_at - _EPOCH) // timedelta(microseconds=1),
            entry.actor,
            entry.action,
            entry.subject,
            entry.details,
        ],
        ensure_ascii=True,
        sort_keys=True,
        separators=(",", ":"),
    )
    return hashlib.sha256(content.encode()).digest()


def first_hash(tenant_id: UUID) -> bytes:
    """Return the previous hash of a tenant's first entry."""
    return hashlib.sha256(f"{_FORM} {tenant_id.hex}".encode()).digest()


def _lock_head(connection: sa.Connection, tenant_id: UUID) -> sa.Row[Any]:
    query = (
        sa.select(
            audit_heads.c.sequence,
            audit_heads.c.hash,
            # Read after the lock, so that times never decrease along the chain.
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
