"""Tenants as operators name them."""

from uuid import UUID

import sqlalchemy as sa

from core.ids import TENANT, parse_public_id
from tenancy.listings import tenant_row
from tenancy.tenants import TenantNotFoundError


def existing_tenant(connection: sa.Connection, public_id: str) -> UUID:
    """Return the id of a tenant that exists. Raises TenantNotFoundError."""
    parsed = parse_public_id(TENANT, public_id)
    if parsed is None or tenant_row(connection, parsed) is None:
        raise TenantNotFoundError
    return parsed
