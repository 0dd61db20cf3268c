"""Goal: zero retention excludes the response cache, and every change of it is audited."""

import pytest
import sqlalchemy as sa

from tenancy.audit_log import Action
from tenancy.response_cache import read_response_cache_ttls, set_response_cache
from tenancy.tables import audit_log
from tenancy.tenants import ZeroRetentionConflictError, create_tenant, set_zero_retention


def recorded_changes(connection: sa.Connection) -> list[object]:
    updated = audit_log.c.action == Action.TENANT_UPDATED.value
    query = sa.select(audit_log.c.details).where(updated).order_by(audit_log.c.sequence)
    return list(connection.scalars(query))


def test_a_change_of_the_cache_is_in_the_audit_log(connection: sa.Connection) -> None:
    tenant_id = create_tenant(connection, "acme")
    set_response_cache(connection, tenant_id, 60)
    assert read_response_cache_ttls(connection) == {tenant_id: 60}
    set_response_cache(connection, tenant_id, None)

    assert read_response_cache_ttls(connection) == {}
    assert recorded_changes(connection) == [
        {"response_cache_ttl_s": 60},
        {"response_cache_ttl_s": None},
    ]


def test_zero_retention_excludes_the_response_cache(connection: sa.Connection) -> None:
    tenant_id = create_tenant(connection, "acme")
    set_zero_retention(connection, tenant_id, on=True)
    with pytest.raises(ZeroRetentionConflictError):
        set_response_cache(connection, tenant_id, 60)
    set_response_cache(connection, tenant_id, None)

    assert recorded_changes(connection) == [
        {"zero_retention": True},
        {"response_cache_ttl_s": None},
    ]
