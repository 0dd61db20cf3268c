"""Goal: with a real Postgres, the revisions produce the schema of the tables and can be undone."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
import sqlalchemy.exc
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from migrations import runner
from migrations.runner import LOCK_TIMEOUT_S, alembic_config, upgrade
from migrations.schema import SCHEMA
from tests.support.until import until


def differences(engine: sa.Engine) -> list[object]:
    """Return the changes that would give the database the schema of the tables."""

    def is_ours(_: object, name: str | None, kind: str, *__: object) -> bool:
        return kind != "table" or name in SCHEMA.tables  # and no partition of a day

    with engine.connect() as connection:
        options = {"compare_type": True, "include_object": is_ours}
        context = MigrationContext.configure(connection, opts=options)
        return list(compare_metadata(context, SCHEMA))


def test_revisions_and_tables_agree(engine: sa.Engine) -> None:
    assert differences(engine) == []


def test_each_revision_can_be_undone(engine: sa.Engine, database_url: str) -> None:
    go_back(engine, "0001")
    upgrade(database_url)
    assert differences(engine) == []


@contextmanager
def upgrading(url: str) -> Iterator[None]:
    """Run an upgrade during the block, which must succeed soon after it."""
    with ThreadPoolExecutor() as threads:
        running = threads.submit(upgrade, url)
        yield
        running.result(40)


def go_back(engine: sa.Engine, revision: str) -> None:
    with engine.connect() as connection:
        command.downgrade(alembic_config(connection), revision)
        connection.commit()


def waits_for_a_lock(engine: sa.Engine, *, longer_than_s: float = 0.0) -> bool:
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
        "AND datname = current_database() "
        "AND clock_timestamp() - query_start > make_interval(secs => :longer_than_s)"
    )
    with engine.connect() as connection:
        return bool(connection.scalar(sa.text(query), {"longer_than_s": longer_than_s}))


def add_tenant(connection: sa.Connection, tenant_id: UUID | None = None) -> None:
    statement = sa.text("INSERT INTO tenants (id, name) VALUES (:id, :name)")
    connection.execute(statement, {"id": tenant_id or uuid4(), "name": uuid4().hex})


def touch_files(connection: sa.Connection) -> None:
    connection.execute(sa.text("UPDATE files SET removed_at = now()"))


def test_an_index_build_does_not_block_writers(engine: sa.Engine, database_url: str) -> None:
    """Its build waits for a transaction that is open; those that come later do not wait for it."""
    go_back(engine, "0019")
    with engine.connect() as old:
        touch_files(old)
        with upgrading(database_url):
            until(lambda: waits_for_a_lock(engine))
            with engine.begin() as later:
                later.execute(sa.text("SET LOCAL lock_timeout = '500ms'"))
                touch_files(later)
            old.commit()
    assert differences(engine) == []


def test_dropping_an_index_does_not_block_writers(engine: sa.Engine, database_url: str) -> None:
    go_back(engine, "0021")
    listed = "CREATE INDEX ix_jobs_listed ON jobs (tenant_id, created_at, id)"
    with engine.begin() as connection:  # no build waits, but for the removal
        connection.execute(sa.text(f"{listed} WHERE kind = 'batch' AND deleted_at IS NULL"))
    with engine.connect() as old:
        old.execute(sa.text("UPDATE jobs SET kind = kind"))
        with upgrading(database_url):
            until(lambda: waits_for_a_lock(engine, longer_than_s=LOCK_TIMEOUT_S + 0.3))
            old.commit()
    assert differences(engine) == []


def test_an_interrupted_index_build_is_repeated(engine: sa.Engine, database_url: str) -> None:
    """The column is there already, and one of the indexes is not valid."""
    go_back(engine, "0017")
    with engine.begin() as connection:
        column = "ADD COLUMN is_due boolean NOT NULL DEFAULT true"
        connection.execute(sa.text(f"ALTER TABLE webhook_deliveries {column}"))
        name = "ix_webhook_deliveries_due"
        connection.execute(sa.text(f"CREATE INDEX {name} ON webhook_deliveries (lane)"))
        invalid = f"UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{name}'::regclass"
        connection.execute(sa.text(invalid))
    upgrade(database_url)
    with engine.connect() as connection:
        broken = sa.text("SELECT count(*) FROM pg_index WHERE NOT indisvalid")
        assert connection.scalar(broken) == 0
        columns = {i["name"]: i["column_names"] for i in sa.inspect(connection).get_indexes(
            "webhook_deliveries")}  # fmt: skip
        assert columns[name] == ["lane", "next_try_at"]


def test_a_lock_timeout_is_retried(engine: sa.Engine, database_url: str) -> None:
    go_back(engine, "0018")
    with engine.connect() as busy:
        add_tenant(busy)
        with upgrading(database_url):
            until(lambda: waits_for_a_lock(engine))
            until(lambda: not waits_for_a_lock(engine))  # it has let those behind it go first
            with engine.begin() as later:
                add_tenant(later)
            busy.commit()
    assert differences(engine) == []


def test_no_retry_starts_after_the_time_limit(
    engine: sa.Engine, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_WAIT_S_MAX", 0.1)
    go_back(engine, "0018")
    with engine.connect() as busy:
        add_tenant(busy)
        begun_s = time.monotonic()
        with pytest.raises(sqlalchemy.exc.OperationalError, match="lock timeout"):
            upgrade(database_url)
    assert time.monotonic() - begun_s < 20  # thirty tries take 90 s


def test_concurrent_upgrades_run_one_after_the_other(engine: sa.Engine, database_url: str) -> None:
    """The second one waits longer than any lock timeout, and blocks no index of the first."""
    go_back(engine, "0009")
    with engine.connect() as old:
        touch_files(old)
        with upgrading(database_url), upgrading(database_url):
            until(lambda: waits_for_a_lock(engine, longer_than_s=LOCK_TIMEOUT_S + 0.3))
            old.commit()
    assert differences(engine) == []


def test_a_batch_has_an_input_file_and_a_request_has_none(engine: sa.Engine) -> None:
    insert = (
        "INSERT INTO jobs (id, tenant_id, kind, endpoint, input_key, input_bytes, "
        "completion_window, expires_at) VALUES (:id, :tenant, :kind, '/v1/embeddings', 'k', 1, "
        "'60s', now())"
    )
    with engine.connect() as connection:
        tenant = uuid4()
        add_tenant(connection, tenant)
        row = {"id": uuid4(), "tenant": tenant, "kind": "request"}
        connection.execute(sa.text(insert), row)
        row |= {"id": uuid4(), "kind": "batch"}
        with pytest.raises(sa.exc.IntegrityError, match="ck_jobs_input_of_its_kind"):
            connection.execute(sa.text(insert), row)
