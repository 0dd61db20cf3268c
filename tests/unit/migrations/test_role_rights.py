"""Goal: the rights of roles in Postgres name tables that exist, and keep secrets from most."""

import re

from cli.stack.processes.role_children import MODULES
from migrations.role_rights import LOGINS, OWNED, RIGHTS, grant_statements
from migrations.schema import SCHEMA

STATEMENTS = list(grant_statements(prefix="m_", schema="s"))


def test_every_table_has_a_user_and_every_right_a_table() -> None:
    named = {table for rights in RIGHTS.values() for table in rights}
    assert named | {*OWNED} == SCHEMA.tables.keys()


def test_every_role_that_uses_the_database_has_a_user() -> None:
    without = {"gpu-consumer", "autoscaler"}
    assert {name.replace("_", "-") for name in LOGINS} == MODULES.keys() - without
    assert not any("gpu" in statement for statement in STATEMENTS)


def test_keys_and_signing_secrets_are_read_by_the_roles_that_use_them() -> None:
    readers = {
        table: {role for role, rights in RIGHTS.items() if may_read_all(rights.get(table, ""))}
        for table in ("api_keys", "operator_keys", "webhook_endpoints", "webhook_callback_secrets")
    }
    assert readers == {
        "api_keys": {"api"},
        "operator_keys": {"api"},
        "webhook_endpoints": {"api", "webhooks"},
        "webhook_callback_secrets": {"api", "webhooks"},
    }


def may_read_all(privileges: str) -> bool:
    """Whether the privileges are not limited to columns, none of which holds a secret."""
    return re.match(r"SELECT(?! \()", privileges) is not None


def test_columns_that_may_be_read_of_tables_with_secrets_are_none_of_those() -> None:
    rights = RIGHTS["results"]
    for table in ("api_keys", "webhook_endpoints", "webhook_callback_secrets"):
        assert not re.search(r"secret|hint|url", rights[table]), table


def test_nobody_changes_the_ledger_or_the_audit_log() -> None:
    for role, rights in RIGHTS.items():
        for table in ("usage_ledger", "audit_log", "deletions"):
            assert rights.get(table, "SELECT") in {"SELECT", "SELECT, INSERT"}, role


def test_statements_replace_earlier_rights_and_use_prefix_and_schema() -> None:
    assert "REVOKE ALL ON ALL TABLES IN SCHEMA s FROM m_batcher" in STATEMENTS
    assert "GRANT SELECT ON s.items TO m_batcher" in STATEMENTS
    assert "ALTER ROLE m_finaliser SET role = 'm_results'" in STATEMENTS
