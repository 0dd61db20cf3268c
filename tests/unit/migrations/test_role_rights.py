"""Goal: the rights of roles in Postgres name tables that exist, and keep secrets from most."""

from cli.stack.processes.role_children import MODULES
from migrations.role_rights import LOGINS, OWNED, RIGHTS, grant_statements
from migrations.schema import SCHEMA

STATEMENTS = list(grant_statements(prefix="m_", schema="s"))


def test_every_table_has_a_user_and_every_right_a_table() -> None:
    named = {table for rights in RIGHTS.values() for table in rights}
    assert named | {OWNED} == SCHEMA.tables.keys()


def test_every_role_but_the_gpu_consumer_has_a_user() -> None:
    assert {name.replace("_", "-") for name in LOGINS} == MODULES.keys() - {"gpu-consumer"}
    assert not any("gpu" in statement for statement in STATEMENTS)


def test_keys_and_signing_secrets_are_read_by_the_roles_that_use_them() -> None:
    readers = {
        table: {role for role, rights in RIGHTS.items() if table in rights}
        for table in ("api_keys", "webhook_endpoints", "webhook_callback_secrets")
    }
    assert readers == {
        "api_keys": {"api"},
        "webhook_endpoints": {"api", "webhooks"},
        "webhook_callback_secrets": {"api", "webhooks"},
    }


def test_nobody_changes_the_ledger_or_the_audit_log() -> None:
    for role, rights in RIGHTS.items():
        for table in ("usage_ledger", "audit_log", "deletions"):
            assert rights.get(table, "SELECT") in {"SELECT", "SELECT, INSERT"}, role


def test_statements_replace_earlier_rights_and_use_prefix_and_schema() -> None:
    assert "REVOKE ALL ON ALL TABLES IN SCHEMA s FROM m_batcher" in STATEMENTS
    assert "GRANT SELECT ON s.items TO m_batcher" in STATEMENTS
    assert "ALTER ROLE m_finaliser SET role = 'm_results'" in STATEMENTS
