"""Deletes a tenant: its keys and its name are erased at once, its data by a finaliser.

The row stays, unnamed, until the last tombstone of the tenant's data is gone. The usage ledger, the
record of deletions and the audit log stay.
"""

from uuid import UUID

import sqlalchemy as sa

from core.ids import TENANT, public_id
from tenancy.audit_log import Action
from tenancy.deletions import What, record_deletion
from tenancy.installation_log import CLI_OPERATOR, Operator, record_tenant_event
from tenancy.tables import api_keys, tenants
from tenancy.tenants import TenantNotFoundError


def delete_tenant(
    connection: sa.Connection, tenant_id: UUID, operator: Operator = CLI_OPERATOR
) -> None:
    """Delete a tenant. Its name may be used again at once. Raises TenantNotFoundError."""
    public = public_id(TENANT, tenant_id)
    deleted = connection.execute(
        sa.update(tenants)
        .where(tenants.c.id == tenant_id, tenants.c.deleted_at.is_(None))
        .values(
            name=f"deleted {public}",
            deleted_at=sa.func.now(),
            response_cache_ttl_s=None,
            zero_retention=True,  # so names of files are removed with their bytes
            zero_retention_since=None,
        )
    )
    if not deleted.rowcount:
        raise TenantNotFoundError
    counts = {"keys": delete_keys(connection, api_keys.c.tenant_id == tenant_id)}
    record_deletion(
        connection, tenant_id=tenant_id, what=What.TENANT, subject_id=tenant_id, counts=counts
    )
    record_tenant_event(connection, operator, tenant_id, Action.TENANT_DELETED, public, counts)


def delete_keys(connection: sa.Connection, where: sa.ColumnElement[bool]) -> int:
    """Delete API keys, whose holders are unknown from then on; return how many."""
    return connection.execute(sa.delete(api_keys).where(where)).rowcount
