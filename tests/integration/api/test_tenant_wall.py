"""Goal: a statement without a tenant condition affects no other tenant, on every accessible table.

Method: rows of two tenants in each table. The accessible tables are read from Postgres, so a new
table fails here until it has a policy, and rows below.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from pydantic import SecretStr

from api.runtime.database import Database
from jobs.store.batches import list_jobs
from jobs.store.keyset_pages import PageCursor
from results.writer.day_partitions import DayPartitions
from storage.postgres.engines import create_engine
from storage.postgres.settings import DatabaseSettings
from storage.postgres.tenant_isolation import TENANT_ROLE, restrict_to_tenant
from tests.conftest import cloned_database, execute

DAY = 20_000
OPEN: set[str] = set()  # tables without rows of tenants

# In the order of their references.
ROWS = {
    "tenants": "(id, name) VALUES (:tenant, CAST(:tenant AS text))",
    "files": "(id, tenant_id, purpose, filename, object_key, size_bytes, sha256) "
    "VALUES (:file, :tenant, 'batch', 'f', CAST(:file AS text), 1, '')",
    "jobs": "(id, tenant_id, endpoint, input_file_id, input_key, input_bytes, completion_window, "
    "expires_at) VALUES (:job, :tenant, '/v1/embeddings', :file, 'k', 1, '24h', now())",
    "job_counters": "(job_id) VALUES (:job)",
    "job_cursors": "(job_id) VALUES (:job)",
    "job_inputs": "(job_id, number, file_id, object_key, size_bytes) "
    "VALUES (:job, 1, :file, 'k', 1)",
    "job_provenance": "(job_id, number, model, model_version) VALUES (:job, 0, 'm', '1')",
    "job_slices": "(job_id, first_sequence, item_indexes) VALUES (:job, 0, '{0}')",
    "items": "(job_id, job_day, item_index, outcome, status_code, attempt, input_tokens, "
    f"output_tokens, cached_tokens, reasoning_tokens) VALUES (:job, {DAY}, 0, 1, 200, 1, 1, 1, 0, "
    "0)",
    "item_attempts": "(job_id, item_index, attempt, status_code, code) "
    "VALUES (:job, 0, 1, 500, 'server_error')",
    "item_copies": "(job_id, item_index, original_index, custom_id) VALUES (:job, 1, 0, 'a')",
    "item_retries": "(job_id, item_index, attempt, due_at) VALUES (:job, 0, 2, now())",
    "dead_items": "(job_id, item_index, tenant_id, job_day, attempt) "
    f"VALUES (:job, 0, :tenant, {DAY}, 1)",
    "usage_ledger": "(tenant_id, job_id, model, model_version, item_count, input_tokens, "
    "output_tokens, cached_tokens, reasoning_tokens) VALUES (:tenant, :job, 'm', '1', 1, 1, 1, 0, "
    "0)",
    "model_versions": "(name, version, pool, engine, endpoints, tenant_id) "
    "VALUES (CAST(:tenant AS text), '1', 'p', 'vllm', '{}', :tenant)",
    "model_names": "(name, alias_of, tenant_id) VALUES (CAST(:tenant AS text), 'm', :tenant)",
    "outbox": "(topic, partition, key, headers) "
    "VALUES ('events', 0, decode(replace(CAST(:job AS text), '-', ''), 'hex'), '[]')",
    "idempotency_keys": "(tenant_id, scope, key, route, state, holder, in_flight_until, "
    "expires_at) VALUES (:tenant, 'client', 'k', 'POST /', 'in_flight', :job, now(), now())",
    "deletions": "(tenant_id, what, counts) VALUES (:tenant, 'file', '{}')",
    "audit_log": "(id, tenant_id, sequence, created_at, actor, action, subject, details, "
    "previous_hash, hash) VALUES (:job, :tenant, 1, now(), 'cli', 'a', 's', '{}', '', '')",
    "audit_heads": "(tenant_id, sequence, hash) VALUES (:tenant, 1, '')",
    "webhook_endpoints": "(id, tenant_id, name, url, event_types, lane) VALUES (:endpoint, "
    ":tenant, 'n', 'u', '{}', 'e:' || CAST(:endpoint AS text))",
    "webhook_callback_secrets": "(tenant_id, sealed_secret, secret_hint) VALUES (:tenant, '', '')",
    "webhook_messages": "(id, tenant_id, job_id, event_type, body) "
    "VALUES (:message, :tenant, :job, 'batch.completed', '')",
    "webhook_deliveries": "(message_id, endpoint_id, tenant_id, lane) "
    "VALUES (:message, :endpoint, :tenant, 'l')",
    "webhook_attempts": "(message_id, endpoint_id, number, started_at, duration_ms) "
    "VALUES (:message, :endpoint, 1, now(), 1)",
    "webhook_lanes": "(lane, failure_count, failing_since) VALUES "
    "('e:' || CAST(:endpoint AS text), 1, now()), "
    "('c:' || CAST(:tenant AS text) || ':https://a:443', 1, now())",
    "webhook_watches": "(job_id, tenant_id) VALUES (:job, :tenant)",
}
COMPANIONS = {"job_counters", "job_cursors"}
"""A second one of a job that exists is refused by the primary key."""

IN_REACH = sa.text("""
SELECT c.relname, c.relrowsecurity, array(
    SELECT r FROM unnest(array['SELECT', 'INSERT', 'UPDATE', 'REFERENCES']) r
    WHERE has_any_column_privilege(:role, c.oid, r)
    UNION SELECT r FROM unnest(array['DELETE', 'TRUNCATE', 'TRIGGER', 'MAINTAIN']) r
    WHERE has_table_privilege(:role, c.oid, r)
)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
    AND n.nspname NOT IN ('pg_catalog', 'information_schema')
""")

READ_JOBS: sa.TextClause = sa.text(
    "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'jobs'"
)


@dataclass(frozen=True)
class Walled:
    """A database with rows of two tenants, as text by table."""

    engine: sa.Engine
    url: str
    mine: dict[str, Any]  # parameters of the rows
    theirs: dict[str, Any]
    my_rows: dict[str, set[str]]
    their_rows: dict[str, set[str]]

    @property
    def tenant(self) -> UUID:
        tenant: UUID = self.mine["tenant"]
        return tenant


@pytest.fixture(scope="module")
def walled(postgres_url: str, migrated_template: str) -> Iterator[Walled]:
    with cloned_database(postgres_url, migrated_template) as url:
        engine = create_engine(DatabaseSettings(url=SecretStr(url)), application_name="test")
        DayPartitions(engine).ensure([DAY])
        names = ("tenant", "file", "job", "endpoint", "message")
        mine, theirs = ({name: uuid.uuid4() for name in names} for _ in range(2))
        with engine.begin() as connection:
            for table in ROWS:
                add(connection, table, mine)
            my_rows = {table: set(rows(connection, table)) for table in ROWS}
            for table in ROWS:
                add(connection, table, theirs)
            their_rows = {table: {*rows(connection, table)} - my_rows[table] for table in ROWS}
        for table in ROWS:
            assert len(my_rows[table]) == len(their_rows[table]) >= 1
        yield Walled(engine, url, mine, theirs, my_rows, their_rows)
        engine.dispose()


def add(connection: sa.Connection, table: str, parameters: dict[str, Any]) -> None:
    statement = sa.text(f"INSERT INTO {table} {ROWS[table]}")
    wanted = [sa.bindparam(name, type_=sa.Uuid) for name in statement.compile().params]
    values = {name: parameters[name] for name in statement.compile().params}
    connection.execute(statement.bindparams(*wanted), values)


def rows(connection: sa.Connection, table: str) -> list[str]:
    return list(connection.scalars(sa.text(f"SELECT t::text FROM {table} t")))


def places(connection: sa.Connection, table: str) -> dict[str, str]:
    """Where each row lies: an update moves it."""
    found = connection.execute(sa.text(f"SELECT t::text, ctid::text FROM {table} t"))
    return {row[0]: row[1] for row in found}


def rights(walled: Walled) -> dict[str, tuple[bool, set[str]]]:
    """Of each table in reach, whether rows are filtered, and what the role may do."""
    with walled.engine.connect() as connection:
        found = connection.execute(IN_REACH, {"role": TENANT_ROLE})
        return {table: (is_walled, set(may)) for table, is_walled, may in found if may}


def test_every_accessible_table_has_a_policy(walled: Walled) -> None:
    in_reach = rights(walled)
    assert set(in_reach) == {*ROWS, *OPEN}  # no day of `items` for itself, and no key
    assert all(in_reach[table] == (False, {"SELECT"}) for table in OPEN)
    assert all(in_reach[table][0] for table in ROWS)
    may = set().union(*(may for _, may in in_reach.values()))
    assert may == {"SELECT", "INSERT", "UPDATE", "DELETE"}
    with walled.engine.connect() as connection:
        policies = connection.execute(
            sa.text(
                "SELECT tablename FROM pg_policies WHERE permissive = 'RESTRICTIVE' "
                "AND roles = ARRAY[CAST(:role AS name)] AND cmd = 'ALL'"
            ),
            {"role": TENANT_ROLE},
        )
        assert sorted(policies.scalars()) == sorted(ROWS)
        role = connection.execute(
            sa.text("SELECT * FROM pg_roles WHERE rolname = :role"), {"role": TENANT_ROLE}
        ).one()
        assert not any((role.rolsuper, role.rolbypassrls, role.rolcanlogin, role.rolcreaterole))
        owned = sa.text(
            "SELECT count(*) FROM pg_class WHERE relowner = CAST(:role AS text)::regrole"
        )
        assert connection.scalar(owned, {"role": TENANT_ROLE}) == 0


@pytest.mark.parametrize("table", ROWS)
@pytest.mark.parametrize("verb", ["SELECT", "UPDATE", "DELETE"])
def test_an_unfiltered_query_returns_only_own_rows(walled: Walled, table: str, verb: str) -> None:
    _, may = rights(walled)[table]
    with walled.engine.connect() as connection:
        # As if no statement were refused for another reason.
        connection.execute(sa.text("SET LOCAL session_replication_role = replica"))
        before = places(connection, table)
        restrict_to_tenant(connection, walled.tenant)
        if verb not in may:
            with pytest.raises(sa.exc.ProgrammingError, match="permission denied"):
                connection.execute(unfiltered(connection, table, verb))
            return
        touched = connection.execute(unfiltered(connection, table, verb))
        if verb == "SELECT":
            assert set(touched.scalars()) == walled.my_rows[table]
            return
        assert touched.rowcount == len(walled.my_rows[table])
        connection.execute(sa.text("RESET ROLE"))
        after = places(connection, table)
        assert {text: after[text] for text in walled.their_rows[table]} == {
            text: before[text] for text in walled.their_rows[table]
        }


def unfiltered(connection: sa.Connection, table: str, verb: str) -> sa.TextClause:
    if verb == "SELECT":
        return sa.text(f"SELECT t::text FROM {table} t")
    if verb == "DELETE":
        return sa.text(f"DELETE FROM {table}")
    columns = sa.text(
        "SELECT attname FROM pg_attribute WHERE attrelid = CAST(:table AS regclass) "
        "AND attnum > 0 ORDER BY has_column_privilege(attrelid, attnum, 'UPDATE') DESC, attnum"
    )
    column = connection.scalars(columns, {"table": table}).first()
    return sa.text(f"UPDATE {table} SET {column} = {column}")


@pytest.mark.parametrize("table", ROWS)
def test_no_row_is_inserted_for_another_tenant(walled: Walled, table: str) -> None:
    _, may = rights(walled)[table]
    refusal = "row-level security" if "INSERT" in may else "permission denied"
    with walled.engine.connect() as connection:
        restrict_to_tenant(connection, walled.tenant)
        if table in COMPANIONS:
            with pytest.raises(sa.exc.IntegrityError, match="pk_"):
                add(connection, table, walled.theirs)
        else:
            with pytest.raises(sa.exc.ProgrammingError, match=refusal):
                add(connection, table, walled.theirs)


@pytest.mark.parametrize("table", ["files", "jobs", "webhook_endpoints", "job_inputs", "tenants"])
def test_no_row_is_moved_to_another_tenant(walled: Walled, table: str) -> None:
    column = {"job_inputs": "job", "tenants": "tenant"}.get(table, "tenant")
    name = {"job_inputs": "job_id", "tenants": "id"}.get(table, "tenant_id")
    with walled.engine.connect() as connection:
        restrict_to_tenant(connection, walled.tenant)
        with pytest.raises(sa.exc.ProgrammingError, match="row-level security"):
            connection.execute(
                sa.text(f"UPDATE {table} SET {name} = :their"), {"their": walled.theirs[column]}
            )


@pytest.mark.parametrize("setting", [None, ""])
def test_the_role_without_a_tenant_sees_nothing(walled: Walled, setting: str | None) -> None:
    with walled.engine.connect() as connection:
        if setting is not None:
            connection.execute(sa.text("SET LOCAL millrace.tenant_id = ''"))
        connection.execute(sa.text(f"SET LOCAL ROLE {TENANT_ROLE}"))
        for table, (_, may) in rights(walled).items():
            if "SELECT" in may and table not in OPEN:
                assert rows(connection, table) == [], table


async def test_the_role_ends_with_its_transaction(walled: Walled) -> None:
    settings = DatabaseSettings(url=SecretStr(walled.url), pool_size=1)
    database = Database(create_engine(settings, application_name="test"), threads=1, timeout_s=10)

    def who(connection: sa.Connection) -> tuple[int, str, str]:
        query = "SELECT pg_backend_pid(), current_user, current_setting('millrace.tenant_id', true)"
        pid, user, tenant = connection.execute(sa.text(query)).one()
        return pid, user, tenant or ""

    def fail(connection: sa.Connection) -> None:
        assert who(connection)[1] == TENANT_ROLE
        raise LookupError

    def be_refused(connection: sa.Connection) -> None:
        connection.execute(sa.text("SELECT * FROM api_keys"))

    try:
        us = await database.run_across_tenants(who)
        assert us[1:] == (sa.make_url(walled.url).username, "")
        walled_off = await database.run_for_tenant(walled.tenant, who)
        assert walled_off == (us[0], TENANT_ROLE, str(walled.tenant))
        assert await database.run_across_tenants(who) == us
        with pytest.raises(LookupError):
            await database.run_for_tenant(walled.tenant, fail)
        assert await database.run_across_tenants(who) == us
        with pytest.raises(sa.exc.ProgrammingError, match="permission denied"):
            await database.run_for_tenant(walled.tenant, be_refused)
        assert await database.run_across_tenants(who) == us
    finally:
        database.close()


@pytest.fixture
def stranger(walled: Walled) -> Iterator[Database]:
    """The database as a login sees it that may not take the tenants' role."""
    name = f"stranger_{uuid.uuid4().hex[:12]}"
    execute(walled.url, f"CREATE ROLE {name} LOGIN PASSWORD 'x'")
    url = sa.make_url(walled.url).set(username=name, password="x")
    settings = DatabaseSettings(url=SecretStr(url.render_as_string(hide_password=False)))
    engine = create_engine(settings, application_name="test")
    database = Database(engine, threads=1, timeout_s=5)
    yield database
    database.close()
    execute(walled.url, f"DROP ROLE {name}")


async def test_a_login_without_the_role_is_not_ready(stranger: Database) -> None:
    assert await stranger.find_problem(5) == "role millrace_tenant is missing, or not ours to take"


def test_a_page_of_jobs_reads_one_page_of_rows(engine: sa.Engine) -> None:
    """The planner must expect that rows of one's own pass, or it reads and sorts them all."""
    tenant = uuid.uuid4()
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in (
            "INSERT INTO tenants (id, name) VALUES (:tenant, 't')",
            "INSERT INTO files (id, tenant_id, purpose, filename, object_key, size_bytes, sha256) "
            "VALUES (:tenant, :tenant, 'batch', 'f', 'k', 1, '')",
            "INSERT INTO jobs (id, tenant_id, endpoint, input_file_id, input_key, input_bytes, "
            "completion_window, expires_at, created_at) SELECT gen_random_uuid(), :tenant, '/v1', "
            ":tenant, 'k', 1, '24h', now(), now() - n * interval '1 s' "
            "FROM generate_series(1, 3000) n",
            "INSERT INTO job_counters (job_id) SELECT id FROM jobs WHERE tenant_id = :tenant",
        ):
            connection.execute(sa.text(statement), {"tenant": tenant})
        connection.execute(sa.text("ANALYZE"))
    with engine.begin() as connection:
        restrict_to_tenant(connection, tenant)
        before = connection.scalar(READ_JOBS)
        page = list_jobs(connection, tenant, PageCursor(limit=20))
        read = connection.scalar(READ_JOBS) - before
    assert len(page.rows) == 20
    assert 20 <= read <= 100
