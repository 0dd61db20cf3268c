"""API keys: the secret is shown once, at creation, and stored as a hash.

A secret is `sk-`, 256 random bits and a checksum, so that a typo is rejected without a query.
"""

import hashlib
import re
import secrets
import zlib
from base64 import urlsafe_b64encode
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from core.ids import new_uuid
from tenancy.audit_log import CLI, Action, key_actor, record_audit_event
from tenancy.tables import api_keys, tenants

PREFIX: Final = "sk-"
_RANDOM_BYTES: Final = 32
_HINT_CHARS: Final = 4
_SECRET: Final = re.compile(r"(sk-[A-Za-z0-9_-]{43})([0-9a-f]{8})")


@dataclass(frozen=True, slots=True)
class Principal:
    """The authenticated tenant and API key of a request."""

    tenant_id: UUID
    key_id: UUID
    zero_retention: bool = False  # of the tenant
    call_timeout_s: float | None = None  # limit of the tenant's calls


@dataclass(frozen=True, slots=True)
class NewKey:
    """A new key with its secret, which its owner sees once."""

    key_id: UUID
    hint: str
    secret: str = field(repr=False)


def create_key(connection: sa.Connection, tenant_id: UUID, name: str) -> NewKey:
    """Create a key of a tenant and return it with its secret."""
    secret = _secret(secrets.token_bytes(_RANDOM_BYTES))
    key = NewKey(new_uuid(), secret[-_HINT_CHARS:], secret)
    connection.execute(
        api_keys.insert().values(
            id=key.key_id,
            tenant_id=tenant_id,
            name=name,
            secret_sha256=secret_hash(secret),
            hint=key.hint,
        )
    )
    _record(connection, tenant_id, Action.KEY_CREATED, key.key_id)
    return key


def revoke_key(connection: sa.Connection, key_id: UUID) -> bool:
    """Revoke a key permanently; return False if there is no such active key."""
    tenant_id: UUID | None = connection.scalar(
        sa.update(api_keys)
        .where(api_keys.c.id == key_id, api_keys.c.revoked_at.is_(None))
        .values(revoked_at=sa.func.now())
        .returning(api_keys.c.tenant_id)
    )
    if tenant_id is not None:
        _record(connection, tenant_id, Action.KEY_REVOKED, key_id)
    return tenant_id is not None


def authenticate(connection: sa.Connection, secret: str) -> Principal | None:
    """Return the principal of an active key, or None.

    The lookup is by hash, so its timing reveals nothing about stored secrets.
    """
    if not is_well_formed(secret):
        return None
    return working_keys(connection, [secret_hash(secret)]).get(secret_hash(secret))


def working_keys(connection: sa.Connection, hashes: Collection[bytes]) -> dict[bytes, Principal]:
    """Return the principals of active keys by `secret_hash`; revoked keys are left out."""
    rows = connection.execute(
        sa.select(
            api_keys.c.secret_sha256,
            api_keys.c.tenant_id,
            api_keys.c.id,
            tenants.c.zero_retention,
            tenants.c.call_timeout_ms,
        )
        .join(tenants, tenants.c.id == api_keys.c.tenant_id)
        .where(api_keys.c.secret_sha256.in_(hashes), api_keys.c.revoked_at.is_(None))
    )
    principals = {}
    for digest, tenant_id, key_id, zero_retention, timeout_ms in rows:
        timeout_s = None if timeout_ms is None else timeout_ms / 1000
        principals[digest] = Principal(tenant_id, key_id, zero_retention, timeout_s)
    return principals


def is_well_formed(secret: str) -> bool:
    """Whether `secret` has the format and checksum of an API key."""
    parts = _SECRET.fullmatch(secret)
    return parts is not None and _checksum(parts[1]) == parts[2]


def secret_hash(secret: str) -> bytes:
    """Return the stored hash. 256 random bits cannot be guessed, so they need no slow hash."""
    return hashlib.sha256(secret.encode()).digest()


def _record(connection: sa.Connection, tenant_id: UUID, action: Action, key_id: UUID) -> None:
    subject = key_actor(key_id)
    record_audit_event(connection, tenant_id=tenant_id, actor=CLI, action=action, subject=subject)


def _secret(random_bytes: bytes) -> str:
    body = PREFIX + urlsafe_b64encode(random_bytes).decode().rstrip("=")
    return body + _checksum(body)


def _checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode()):08x}"
