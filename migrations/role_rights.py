"""What each role may do in Postgres: rights on tables, as `GRANT` statements.

The writer and the finaliser create and drop day partitions of `items` and `billed_calls`, for which
Postgres requires that their owner does it. So both act as one database role, `…_results`, which
owns these tables.
A gpu-consumer has no user: it does not use Postgres.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from storage.postgres.tenant_isolation import TENANT_ROLE

_READ: Final = "SELECT"
_LOCK: Final = "SELECT, UPDATE"  # a row lock needs a right to update
_ADD: Final = "SELECT, INSERT"
_EDIT: Final = "SELECT, INSERT, UPDATE"
_ALL: Final = "SELECT, INSERT, UPDATE, DELETE"

_WATCH: Final = {"commit_watermark": "SELECT, UPDATE (lost_above)"}
_AUDIT: Final = {"audit_heads": _EDIT, "audit_log": _ADD}

RIGHTS: Final[Mapping[str, Mapping[str, str]]] = {
    "api": {
        **_AUDIT,
        **_WATCH,
        "api_keys": _ALL,
        "dead_items": _LOCK,
        "deletions": _ADD,
        "files": _EDIT,
        "idempotency_keys": _ALL,
        "item_attempts": _READ,
        "item_copies": _READ,
        "item_retries": _READ,
        "items": _READ,
        "job_counters": _ALL,
        "job_cursors": _ADD,
        "job_inputs": _EDIT,
        "job_provenance": _READ,
        "job_slices": _READ,
        "jobs": _EDIT,
        "model_keys": "SELECT, INSERT, UPDATE (revoked_at)",
        "model_manifests": _ADD,
        "model_names": _ADD,
        "model_signatures": _ADD,
        "model_versions": "SELECT, INSERT, UPDATE (registered_at, retired_at)",
        "operator_keys": _READ,
        "outbox": "INSERT",
        "tenant_quarantines": "SELECT, DELETE",
        "tenants": _EDIT,
        "usage_ledger": _ADD,
        "webhook_attempts": _READ,
        "webhook_callback_secrets": _EDIT,
        "webhook_deliveries": _EDIT,
        "webhook_endpoints": _ALL,
        "webhook_lanes": "SELECT, DELETE",
        "webhook_messages": "SELECT, INSERT, DELETE",
        "webhook_watches": "SELECT, INSERT, DELETE",
    },
    "intake": {
        "commit_watermark": _LOCK,
        "files": _LOCK,
        "item_attempts": _READ,
        "item_copies": "SELECT, INSERT, DELETE",
        "item_retries": "SELECT, UPDATE, DELETE",
        "items": _READ,
        "job_counters": _LOCK,
        "job_cursors": _LOCK,
        "job_inputs": _LOCK,
        "job_leases": _ALL,
        "jobs": _LOCK,
        "model_names": _READ,
        "model_versions": _READ,
        "outbox": _ALL,
        "retry_budgets": _EDIT,
        "tenant_quarantines": "SELECT, DELETE",
        "tenants": _READ,
    },
    "batcher": {**_WATCH, "items": _READ},
    "results": {
        **_AUDIT,
        **_WATCH,
        "api_keys": "SELECT (tenant_id), DELETE",
        "dead_items": _ALL,
        "deletions": _ADD,
        "files": _ALL,
        "idempotency_keys": _ALL,
        "item_attempts": _ALL,
        "item_copies": "SELECT, UPDATE, DELETE",
        "item_retries": _ALL,
        "job_counters": _ALL,
        "job_cursors": "SELECT, DELETE",
        "job_inputs": "SELECT, UPDATE, DELETE",
        "job_leases": _ALL,
        "job_process_ends": "SELECT, INSERT, DELETE",
        "job_provenance": _ALL,
        "job_slices": "SELECT, INSERT, DELETE",
        "jobs": "SELECT, UPDATE, DELETE",
        "model_versions": _READ,
        "outbox": "INSERT",
        "sweep_leases": _EDIT,
        "tenant_quarantines": _EDIT,
        "tenants": "SELECT, UPDATE (id, erased_at), DELETE",
        "usage_ledger": _ADD,
        "webhook_callback_secrets": "SELECT (tenant_id), DELETE",
        "webhook_endpoints": "SELECT (id, tenant_id, lane, disabled_at, disabled_reason), UPDATE",
        "webhook_lanes": "SELECT, DELETE",
        "webhook_messages": "SELECT, DELETE",
        "webhook_watches": "SELECT, DELETE",
    },
    "webhooks": {
        **_WATCH,
        "item_retries": _READ,
        "items": _READ,
        "job_counters": _READ,
        "job_cursors": _READ,
        "job_inputs": _READ,
        "jobs": "SELECT, UPDATE (id)",
        "tenants": "SELECT, UPDATE (id)",
        "webhook_attempts": "SELECT, INSERT, DELETE",
        "webhook_callback_secrets": "SELECT, UPDATE, DELETE",
        "webhook_deliveries": _ALL,
        "webhook_endpoints": "SELECT, UPDATE, DELETE",
        "webhook_lanes": _ALL,
        "webhook_messages": _ALL,
        "webhook_watches": _ALL,
    },
}
"""Database role, without its prefix, to the rights that it needs by table."""

_OWNER: Final = "results"
OWNED: Final = ("billed_calls", "items")
"""The tables that the database role `results` owns, with their partitions."""

LOGINS: Final = ("api", "intake", "batcher", "results_writer", "finaliser", "webhooks")
"""The users of the processes, without their prefix."""

_ACT_AS: Final = {"results_writer": _OWNER, "finaliser": _OWNER}

_CREATE: Final = (
    "DO $$ BEGIN CREATE ROLE {name} {kind}; EXCEPTION WHEN duplicate_object THEN NULL; END $$"
)
_OWN_PARTITIONS: Final = """DO $$ DECLARE part regclass; BEGIN
  FOR part IN SELECT relid FROM pg_partition_tree('{table}') LOOP
    EXECUTE format('ALTER TABLE %s OWNER TO {owner}', part);
  END LOOP;
END $$"""


def grant_statements(*, prefix: str, schema: str) -> Iterator[str]:
    """Yield SQL statements that create the users and give them exactly their rights.

    Run them as the owner of the tables, after each migration. They can be repeated. Users have no
    password yet. `prefix` and `schema` must be plain identifiers.
    """
    names = {role: prefix + role for role in {*LOGINS, *RIGHTS}}
    for role in sorted(names):
        kind = "LOGIN" if role in LOGINS else "NOLOGIN"
        yield _CREATE.format(name=names[role], kind=kind)
    for role in sorted(names):
        yield f"REVOKE ALL ON ALL TABLES IN SCHEMA {schema} FROM {names[role]}"
        yield f"GRANT USAGE ON SCHEMA {schema} TO {names[role]}"
    for role, rights in RIGHTS.items():
        for table, privileges in sorted(rights.items()):
            yield f"GRANT {privileges} ON {schema}.{table} TO {names[role]}"
    owner = names[_OWNER]
    yield f"GRANT CREATE ON SCHEMA {schema} TO {owner}"
    yield f"GRANT {owner} TO CURRENT_USER"  # whose migrations change the table, too
    for table in OWNED:
        yield _OWN_PARTITIONS.format(table=f"{schema}.{table}", owner=owner)
        yield f"GRANT ALL ON {schema}.{table} TO {owner}"
    for role in ("api", _OWNER):
        yield f"GRANT USAGE ON SEQUENCE {schema}.usage_ledger_id_seq TO {names[role]}"
    for user, role in _ACT_AS.items():
        yield f"GRANT {names[role]} TO {names[user]}"
        yield f"ALTER ROLE {names[user]} SET role = '{names[role]}'"
    yield f"GRANT {TENANT_ROLE} TO {names['api']} WITH INHERIT FALSE, SET TRUE"
