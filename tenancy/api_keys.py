"""API keys: the secret is shown once, at creation, and stored as a hash.

A secret is `sk-`, 256 random bits and a checksum, so that a typo is rejected without a query.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from core.tenant_claims import NORMAL_CLASS, PriorityClass
from tenancy.audit_log import Action, key_actor
from tenancy.installation_log import CLI_OPERATOR, Operator, record_tenant_event
from tenancy.key_secrets import NewKey, has_key_format, new_key, secret_hash
from tenancy.tables import api_keys, tenants
from tenancy.tenants import check_name

PREFIX: Final = "sk-"


@dataclass(frozen=True, slots=True)
class Principal:
    """The authenticated tenant and API key of a request."""

    tenant_id: UUID
    key_id: UUID
    zero_retention: bool = False  # of the tenant
    call_timeout_s: float | None = None  # limit of the tenant's calls
    weight: int = 1  # of the tenant, among those that use a pool
    reserved_shares: Mapping[str, float] = field(default_factory=dict, hash=False)  # by pool
    tenant_class: int = NORMAL_CLASS  # number of the tenant's priority class
    degraded_output_tokens_max: int | None = None  # under load; None: calls are not capped
    degraded_model: str | None = None  # for calls that would be refused; None: they are refused

    @property
    def is_degradable(self) -> bool:
        """Whether the tenant allows its calls to be degraded."""
        return self.degraded_output_tokens_max is not None or self.degraded_model is not None

    @property
    def idempotency_owner(self) -> UUID:
        """The owner of its idempotency keys: the tenant, whose keys share them."""
        return self.tenant_id


def create_key(
    connection: sa.Connection, tenant_id: UUID, name: str, operator: Operator = CLI_OPERATOR
) -> NewKey:
    """Create a key of a tenant and return it with its secret. Raises InvalidTenantNameError."""
    check_name(name, may_be_empty=True)
    key = new_key(PREFIX)
    connection.execute(
        api_keys.insert().values(
            id=key.key_id,
            tenant_id=tenant_id,
            name=name,
            secret_sha256=secret_hash(key.secret),
            hint=key.hint,
        )
    )
    subject = key_actor(key.key_id)
    record_tenant_event(connection, operator, tenant_id, Action.KEY_CREATED, subject)
    return key


def revoke_key(connection: sa.Connection, key_id: UUID, operator: Operator = CLI_OPERATOR) -> bool:
    """Revoke a key permanently; return False if there is no such active key."""
    tenant_id: UUID | None = connection.scalar(
        sa.update(api_keys)
        .where(api_keys.c.id == key_id, api_keys.c.revoked_at.is_(None))
        .values(revoked_at=sa.func.now())
        .returning(api_keys.c.tenant_id)
    )
    if tenant_id is not None:
        subject = key_actor(key_id)
        record_tenant_event(connection, operator, tenant_id, Action.KEY_REVOKED, subject)
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
            tenants.c.weight,
            tenants.c.reserved_shares,
            tenants.c.priority_class,
            tenants.c.degraded_output_tokens_max,
            tenants.c.degraded_model,
        )
        .join(tenants, tenants.c.id == api_keys.c.tenant_id)
        .where(
            api_keys.c.secret_sha256.in_(hashes),
            api_keys.c.revoked_at.is_(None),
            tenants.c.deleted_at.is_(None),
        )
    )
    principals = {}
    for digest, tenant_id, key_id, zero_retention, timeout_ms, weight, shares, name, *rest in rows:
        timeout_s = None if timeout_ms is None else timeout_ms / 1000
        principals[digest] = Principal(
            tenant_id,
            key_id,
            zero_retention,
            timeout_s,
            weight,
            shares,
            PriorityClass(name).number,
            *rest,
        )
    return principals


def is_well_formed(secret: str) -> bool:
    """Whether `secret` has the format and checksum of an API key."""
    return has_key_format(PREFIX, secret)
