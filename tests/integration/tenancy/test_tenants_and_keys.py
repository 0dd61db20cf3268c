"""Goal: a key works until it is revoked; the settings of a tenant are consistent and audited."""

from datetime import datetime
from uuid import UUID

import pytest
import sqlalchemy as sa

from core.ids import new_uuid
from tenancy.api_keys import Principal, authenticate, create_key, revoke_key
from tenancy.audit_log import Action
from tenancy.installation_log import INSTALLATION
from tenancy.response_cache import read_response_cache_ttls, set_response_cache
from tenancy.tables import api_keys, audit_log, tenants
from tenancy.tenants import (
    InvalidTenantNameError,
    TenantExistsError,
    TenantNotFoundError,
    ZeroRetentionConflictError,
    create_tenant,
    find_tenant,
    set_zero_retention,
    stored_bytes_max,
)


def test_a_tenant_is_found_by_its_name(connection: sa.Connection) -> None:
    tenant_id = create_tenant(connection, "one", stored_bytes_max=5)

    assert find_tenant(connection, "one") == tenant_id
    assert stored_bytes_max(connection, tenant_id, default=9, lock=True) == 5
    other = create_tenant(connection, "two")
    assert stored_bytes_max(connection, other, default=9, lock=False) == 9
    with pytest.raises(TenantExistsError):
        create_tenant(connection, "one")
    with pytest.raises(TenantNotFoundError):
        find_tenant(connection, "three")


def test_zero_retention_keeps_its_first_start(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        tenant_id = create_tenant(connection, "one")
        other = create_tenant(connection, "two", zero_retention=True)

    def set_retention(tenant_id: UUID, *, on: bool) -> datetime | None:
        with engine.begin() as connection:
            set_zero_retention(connection, tenant_id, on=on)
            query = sa.select(tenants.c.zero_retention_since).where(tenants.c.id == tenant_id)
            return connection.scalar(query)

    first = set_retention(tenant_id, on=True)
    assert first is not None
    assert set_retention(tenant_id, on=True) == first
    assert set_retention(tenant_id, on=False) is None
    again = set_retention(tenant_id, on=True)
    assert again is not None
    assert again > first
    assert set_retention(other, on=True) is None  # without a start time: all its data


@pytest.mark.parametrize(
    "name", ["", " ", "\u00a0", "a\x00", "a\nb", "\x1b[31m", "a\u2028b", "\ud800"]
)
def test_an_invisible_name_is_rejected(connection: sa.Connection, name: str) -> None:
    with pytest.raises(InvalidTenantNameError):
        create_tenant(connection, name)


@pytest.mark.parametrize("name", ["acme", "Zürich AG", "日本", "a b"])
def test_a_name_in_any_language_is_accepted(connection: sa.Connection, name: str) -> None:
    assert create_tenant(connection, name) == find_tenant(connection, name)


def test_a_key_works_until_it_is_revoked(connection: sa.Connection) -> None:
    tenant_id = create_tenant(connection, "one")
    key, other = (create_key(connection, tenant_id, name) for name in ("a", "b"))

    assert authenticate(connection, key.secret) == Principal(tenant_id, key.key_id)
    assert revoke_key(connection, key.key_id)
    assert not revoke_key(connection, key.key_id)
    assert not revoke_key(connection, new_uuid())
    assert authenticate(connection, key.secret) is None
    assert authenticate(connection, other.secret) is not None


@pytest.mark.parametrize("secret", ["", "sk-", "\x00", "ü" * 60, "sk-" + "a" * 51, "x" * 100_000])
def test_an_invalid_secret_has_no_principal(connection: sa.Connection, secret: str) -> None:
    assert authenticate(connection, secret) is None


def test_no_column_holds_the_secret(connection: sa.Connection) -> None:
    key = create_key(connection, create_tenant(connection, "one"), "a")
    row = connection.execute(sa.select(api_keys)).one()

    assert key.secret.endswith(key.hint)
    assert row.hint == key.hint
    assert not any(key.secret in str(value) or key.secret.encode() == value for value in row)


def recorded_changes(connection: sa.Connection) -> list[object]:
    updated = audit_log.c.action == Action.TENANT_UPDATED.value
    of_tenants = audit_log.c.tenant_id != INSTALLATION
    query = sa.select(audit_log.c.details).where(updated, of_tenants).order_by(audit_log.c.sequence)
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
