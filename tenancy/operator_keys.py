"""Operator keys: keys of the installation, which read and change tenants but none of their data.

They are hashed like API keys, and begin with another prefix, so that each kind of route can refuse
the other kind of key without a query.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from core.ids import OPERATOR_KEY, public_id
from tenancy.audit_log import Action
from tenancy.installation_log import CLI_OPERATOR, Operator, record_operator_event
from tenancy.key_secrets import NewKey, has_key_format, new_key, secret_hash
from tenancy.tables import operator_keys
from tenancy.tenants import check_name

PREFIX: Final = "sk-op-"


class OperatorRole(StrEnum):
    """What an operator key may do."""

    READ = "read"
    ADMIN = "admin"  # also change


@dataclass(frozen=True, slots=True)
class OperatorPrincipal:
    """The operator key that a request was authenticated as."""

    key_id: UUID
    role: OperatorRole

    @property
    def idempotency_owner(self) -> UUID:
        """The owner of its idempotency keys: the operator key itself."""
        return self.key_id


def create_operator_key(
    connection: sa.Connection, name: str, role: OperatorRole, operator: Operator = CLI_OPERATOR
) -> NewKey:
    """Create an operator key and return it with its secret. Raises InvalidTenantNameError."""
    check_name(name, may_be_empty=True)
    key = new_key(PREFIX)
    connection.execute(
        operator_keys.insert().values(
            id=key.key_id,
            name=name,
            role=role.value,
            secret_sha256=secret_hash(key.secret),
            hint=key.hint,
        )
    )
    subject = public_id(OPERATOR_KEY, key.key_id)
    details = {"role": role.value}
    record_operator_event(connection, operator, Action.OPERATOR_KEY_CREATED, subject, details)
    return key


def revoke_operator_key(
    connection: sa.Connection, key_id: UUID, operator: Operator = CLI_OPERATOR
) -> bool:
    """Revoke an operator key permanently; return False if there is no such active key."""
    revoked = connection.scalar(
        sa.update(operator_keys)
        .where(operator_keys.c.id == key_id, operator_keys.c.revoked_at.is_(None))
        .values(revoked_at=sa.func.now())
        .returning(operator_keys.c.id)
    )
    if revoked is None:
        return False
    subject = public_id(OPERATOR_KEY, key_id)
    record_operator_event(connection, operator, Action.OPERATOR_KEY_REVOKED, subject)
    return True


def list_operator_keys(connection: sa.Connection, *, with_revoked: bool) -> list[sa.Row[Any]]:
    """Return the operator keys without their hashes, oldest first."""
    columns = [column for column in operator_keys.c if column.name != "secret_sha256"]
    query = sa.select(*columns).order_by(operator_keys.c.created_at, operator_keys.c.id)
    if not with_revoked:
        query = query.where(operator_keys.c.revoked_at.is_(None))
    return list(connection.execute(query))


def authenticate_operator(connection: sa.Connection, secret: str) -> OperatorPrincipal | None:
    """Return the principal of an active operator key, or None."""
    if not is_operator_secret(secret):
        return None
    return working_operator_keys(connection, [secret_hash(secret)]).get(secret_hash(secret))


def working_operator_keys(
    connection: sa.Connection, hashes: Collection[bytes]
) -> dict[bytes, OperatorPrincipal]:
    """Return the principals of active keys by `secret_hash`; revoked keys are left out."""
    rows = connection.execute(
        sa.select(operator_keys.c.secret_sha256, operator_keys.c.id, operator_keys.c.role).where(
            operator_keys.c.secret_sha256.in_(hashes), operator_keys.c.revoked_at.is_(None)
        )
    )
    return {digest: OperatorPrincipal(key_id, OperatorRole(role)) for digest, key_id, role in rows}


def is_operator_secret(secret: str) -> bool:
    """Whether `secret` has the format and checksum of an operator key."""
    return has_key_format(PREFIX, secret)
