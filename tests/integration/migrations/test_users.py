"""Goal: database users without superuser rights can run Millrace, with clear errors."""

import uuid
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from migrations.runner import PrivilegeMissingError, upgrade
from storage.postgres.tenant_isolation import TENANT_ROLE, restrict_to_tenant
from tenancy.tenants import create_tenant
from tests.conftest import execute, with_database


@pytest.fixture
def owner_url(postgres_url: str) -> Iterator[str]:
    """The URL of an empty database as the user who owns it, and who may make no roles."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    execute(postgres_url, f"CREATE ROLE {name} LOGIN PASSWORD '{name}'")
    execute(postgres_url, f"CREATE DATABASE {name} OWNER {name}")
    yield as_user(with_database(postgres_url, name), name)
    execute(postgres_url, f"DROP DATABASE {name} WITH (FORCE)")
    execute(postgres_url, f"DROP ROLE {name}")


def as_user(url: str, name: str) -> str:
    set_ = sa.make_url(url).set(username=name, password=name)
    return set_.render_as_string(hide_password=False)


def count_tenants(connection: sa.Connection) -> int:
    return connection.scalar(sa.text("SELECT count(*) FROM tenants")) or 0


def test_an_owner_without_rights_on_roles_can_upgrade(
    postgres_url: str, migrated_template: str, owner_url: str
) -> None:
    assert migrated_template  # so the role is there, made by another
    owner = sa.make_url(owner_url).username
    grant = f"GRANT {TENANT_ROLE} TO {owner} WITH INHERIT FALSE, SET TRUE"
    with pytest.raises(PrivilegeMissingError, match=grant):
        upgrade(owner_url)
    execute(postgres_url, grant)
    upgrade(owner_url)

    engine = sa.create_engine(owner_url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        ids = [create_tenant(connection, name) for name in ("one", "other")]
    with engine.begin() as connection:
        assert count_tenants(connection) == 2
        restrict_to_tenant(connection, ids[0])
        assert count_tenants(connection) == 1


def test_a_user_without_ownership_is_not_restricted_to_a_tenant(
    postgres_url: str, database_url: str, owner_url: str
) -> None:
    """Processes may run as one who was granted the tables: no tenant is theirs."""
    user = str(sa.make_url(owner_url).username)
    engine = sa.create_engine(database_url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        for name in ("one", "other"):
            create_tenant(connection, name)
        connection.execute(sa.text(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {user}"))
        grant = f"GRANT {TENANT_ROLE} TO {user} WITH INHERIT FALSE, SET TRUE"
        connection.execute(sa.text(grant))
    with sa.create_engine(as_user(database_url, user), poolclass=sa.NullPool).begin() as connection:
        assert count_tenants(connection) == 2
    with engine.begin() as connection:
        connection.execute(sa.text(f"DROP OWNED BY {user}"))
