"""Tenants: who owns files, jobs and keys. Identity comes from a key alone, never from a request."""

from collections.abc import Mapping
from typing import Any, Final
from unicodedata import category
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from core.ids import TENANT, new_uuid, public_id
from tenancy.audit_log import CLI, Action, AuditEvent, Details, record_audit_event
from tenancy.errors import InvalidTenantNameError, TenantExistsError, TenantNotFoundError
from tenancy.tables import tenants

_UNSEEN: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})  # of Unicode: control, half pairs, line ends


def create_tenant(
    connection: sa.Connection,
    name: str,
    *,
    stored_bytes_max: int | None = None,
    zero_retention: bool = False,
) -> UUID:
    """Add a tenant; without `stored_bytes_max` the installation's default holds.

    With `zero_retention` it keeps nothing but the ledger. Raises InvalidTenantNameError,
    TenantExistsError.
    """
    if not name.strip() or any(category(character) in _UNSEEN for character in name):
        raise InvalidTenantNameError
    statement = (
        insert(tenants)
        .values(
            id=new_uuid(),
            name=name,
            stored_bytes_max=stored_bytes_max,
            zero_retention=zero_retention,
        )
        .on_conflict_do_nothing(index_elements=[tenants.c.name])
        .returning(tenants.c.id)
    )
    tenant_id: UUID | None = connection.scalar(statement)
    if tenant_id is None:
        raise TenantExistsError(name=name)
    subject = public_id(TENANT, tenant_id)
    act = AuditEvent(tenant_id=tenant_id, actor=CLI, action=Action.TENANT_CREATED, subject=subject)
    record_audit_event(connection, act)
    return tenant_id


def find_tenant(connection: sa.Connection, name: str) -> UUID:
    """Return the tenant of that name. Raises TenantNotFoundError."""
    tenant_id: UUID | None = connection.scalar(
        sa.select(tenants.c.id).where(tenants.c.name == name)
    )
    if tenant_id is None:
        raise TenantNotFoundError(name=name)
    return tenant_id


def set_zero_retention(connection: sa.Connection, tenant_id: UUID, *, on: bool) -> None:
    """Let a tenant keep nothing but the ledger, or end that; for what is created from then on.

    Answers that may be given again are kept answers: turning it on turns them off. Said again, it
    still began when it was said first.
    """
    values: dict[str, object] = {"zero_retention": on, "zero_retention_since": None}
    if on:
        began = sa.case(
            (tenants.c.zero_retention, tenants.c.zero_retention_since), else_=sa.func.now()
        )
        values |= {"zero_retention_since": began, "response_cache_ttl_s": None}
    change_tenant(connection, tenant_id, values, {"zero_retention": on})


def set_call_timeout(connection: sa.Connection, tenant_id: UUID, timeout_ms: int | None) -> None:
    """Bound the time of a tenant's online calls; with None the installation's limit holds."""
    values = {"call_timeout_ms": timeout_ms}
    change_tenant(connection, tenant_id, values, values)


def keeps_nothing(tenant_id: UUID | sa.ColumnElement[Any]) -> sa.ScalarSelect[bool]:
    """Return the expression whether a tenant keeps nothing but the ledger; a column names many."""
    query = sa.select(tenants.c.zero_retention).where(tenants.c.id == tenant_id)
    return query.scalar_subquery()


def stored_bytes_max(
    connection: sa.Connection, tenant_id: UUID, *, default: int, lock: bool
) -> int:
    """Return the bytes that a tenant may store.

    With `lock`, whoever else asks with it waits for the end of this transaction, so that two
    uploads cannot both take the last bytes. Readers and new jobs do not wait.
    """
    query = sa.select(tenants.c.stored_bytes_max).where(tenants.c.id == tenant_id)
    if lock:
        query = query.with_for_update(key_share=True)
    own: int | None = connection.scalar(query)
    return default if own is None else own


def change_tenant(
    connection: sa.Connection, tenant_id: UUID, values: Mapping[str, object], details: Details
) -> None:
    """Change columns of a tenant, and record the act with `details`."""
    connection.execute(sa.update(tenants).where(tenants.c.id == tenant_id).values(**values))
    act = AuditEvent(
        tenant_id=tenant_id,
        actor=CLI,
        action=Action.TENANT_UPDATED,
        subject=public_id(TENANT, tenant_id),
        details=details,
    )
    record_audit_event(connection, act)
