"""Goal: expired data is removed without blocking others; young, running or refused data stays."""

from collections.abc import Callable, Iterator
from datetime import date, timedelta
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from core.object_names import answer_prefix
from jobs.store.removable_objects import mark_removed
from jobs.tables.files import files
from jobs.tables.jobs import jobs
from results.metrics import RETENTION_FAILURES
from results.retention import day_removal, deletion
from results.retention.day_removal import day_of, drop_unneeded_days
from results.retention.deletion import BatchTombstones
from results.retention.expired_data import old_batches_query
from results.retention.sweep import RetentionSweep
from results.retention.sweep_lease import SweepLease
from results.settings import RetentionSettings
from results.writer.day_partitions import DayPartitions, partition_name
from storage.objects.local_object_store import LocalObjectStore
from storage.objects.object_store import write_object
from storage.postgres.engines import create_engine
from storage.postgres.items import items
from storage.postgres.settings import DatabaseSettings
from tenancy.deletions import deletions
from tests import conftest
from tests.integration.jobs.rows import add_file
from tests.integration.results.outcomes import (
    add_running_job,
    count,
    days_ago,
    execute,
    fetch,
    job,
    keys,
    ledger,
    outcome,
    scalars,
    settle,
    today,
    write,
)
from tests.integration.results.test_deletion import delete, item_count

Sweep = Callable[..., None]
REQUEST = {"kind": "request", "input_file_id": None}
WITHOUT_GUARDS = sa.text("SET LOCAL session_replication_role = replica")


@pytest.fixture
def sweep(engine: sa.Engine, store: LocalObjectStore) -> Sweep:
    """Run the retention sweep of a new process once."""

    def run_sweep(**settings: Any) -> None:
        settings = {"batch_days": 10, "request_days": 10, "tombstone_days": 10} | settings
        RetentionSweep(engine, store, RetentionSettings(**settings), "me").run_once()

    return run_sweep


def end(engine: sa.Engine, job_id: UUID, days: float) -> None:
    ended = {"state": "completed", "completed_at": days_ago(days)}
    execute(engine, WITHOUT_GUARDS, sa.update(jobs).where(jobs.c.id == job_id).values(ended))


def ended_job(engine: sa.Engine, days: float, *, created: float | None = None) -> UUID:
    """A batch of one item that ended so many days ago."""
    job_id = settle(engine, outcome(0), created_at=days_ago(created or days))
    end(engine, job_id, days)
    return job_id


def request(engine: sa.Engine, store: LocalObjectStore, days: float) -> tuple[UUID, str]:
    """A terminal single request with an answer too large for its row."""
    job_id = add_running_job(engine, 1, created_at=days_ago(days), **REQUEST)
    key = f"{answer_prefix(job_id)}0"
    write_object(store, key, b"{}")
    write(engine, job_id, outcome(0, body=b"", body_key=key))
    end(engine, job_id, days)
    return job_id, key


def exists(engine: sa.Engine, table: sa.Table, *ids: UUID) -> list[bool]:
    found = scalars(engine, sa.select(table.c.id).where(table.c.id.in_(ids)))
    return [one in found for one in ids]


def test_batches_expire_by_their_end_and_keep_their_ledger(engine: sa.Engine, sweep: Sweep) -> None:
    old = ended_job(engine, 11)
    bill = ledger(engine, old)
    young = ended_job(engine, 1, created=15)
    running = add_running_job(engine, 1, created_at=days_ago(20))

    sweep()

    assert job(engine, old)["deleted_at"] is not None
    assert job(engine, old)["removal_due_at"] is None
    assert (item_count(engine, old), item_count(engine, young)) == (0, 1)
    assert job(engine, young)["deleted_at"] is None
    assert job(engine, running)["deleted_at"] is None
    assert ledger(engine, old) == bill
    told = fetch(engine, sa.select(deletions.c.what, deletions.c.key_id))
    assert [tuple(row) for row in told] == [("batch", None), ("batch_bodies", None)]


def test_expired_requests_are_removed_with_all_their_rows(
    engine: sa.Engine, store: LocalObjectStore, sweep: Sweep
) -> None:
    old, _ = request(engine, store, 11)
    young, kept = request(engine, store, 9)
    bill = ledger(engine, old)
    running = add_running_job(engine, 1, created_at=days_ago(20), **REQUEST)

    sweep()

    assert exists(engine, jobs, old, young, running) == [False, True, True]
    assert (item_count(engine, old), item_count(engine, young)) == (0, 1)
    assert keys(store) == {kept}
    assert ledger(engine, old) == bill


def test_files_without_expiry_are_deleted_by_age(engine: sa.Engine, sweep: Sweep) -> None:
    tenant_id = job(engine, add_running_job(engine, 1))["tenant_id"]
    with engine.begin() as connection:
        old, _ = (add_file(connection, tenant_id).id for _ in range(2))
    aged = sa.update(files).where(files.c.id == old).values(created_at=days_ago(11))
    execute(engine, sa.update(files).values(expires_at=None), aged)
    sweep()
    assert count(engine, files, files.c.deleted_at.is_not(None)) == 0
    sweep(file_days=10)
    assert scalars(engine, sa.select(files.c.id).where(files.c.deleted_at.is_not(None))) == [old]


def test_tombstones_and_file_rows_are_removed(engine: sa.Engine, sweep: Sweep) -> None:
    old, young = ended_job(engine, 5), ended_job(engine, 5)
    delete(engine, old, young)
    file_id, kept = (job(engine, one)["input_file_id"] for one in (old, young))
    with engine.begin() as connection:
        mark_removed(connection, [file_id, kept])
    sweep()
    execute(
        engine,
        WITHOUT_GUARDS,
        sa.update(jobs).where(jobs.c.id == old).values(deleted_at=days_ago(11)),
        sa.update(files).values(removed_at=days_ago(11)),
    )
    sweep()
    assert exists(engine, jobs, old, young) == [False, True]
    assert exists(engine, files, file_id, kept) == [False, True]


def partitions(engine: sa.Engine) -> set[str]:
    query = "SELECT relname FROM pg_class WHERE relname ~ '^items_[0-9]{8}$'"
    return set(scalars(engine, sa.text(query)))


def test_unneeded_day_is_dropped(engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    gone, needed = ended_job(engine, 11), ended_job(engine, 12)
    bill = ledger(engine, gone)
    DayPartitions(engine).ensure([today(engine)])
    delete(engine, gone)

    # An idle transaction that has used `items`, like a writer that waits for a lock.
    with engine.begin() as writer:
        writer.execute(sa.select(items.c.item_index).limit(1))
        monkeypatch.setattr(day_removal, "_TIMEOUTS", "SET statement_timeout = '300ms'")
        assert drop_unneeded_days(engine) == 0
        monkeypatch.undo()
        # The detach waits, and blocks neither writes nor reads.
        writer.execute(sa.text("SET LOCAL lock_timeout = '5s'"))
        writer.execute(sa.select(items.c.item_index).limit(1))
        with engine.begin() as another:
            another.execute(sa.text("SET LOCAL lock_timeout = '5s'"))
            another.execute(sa.select(items.c.item_index).limit(1))
    assert drop_unneeded_days(engine) == 1
    assert drop_unneeded_days(engine) == 0

    now = today(engine)
    assert partitions(engine) == {partition_name(now - 12), partition_name(now)}
    assert item_count(engine, needed) == 1
    assert ledger(engine, gone) == bill


def test_half_detached_day_is_completed_first(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier, later = ended_job(engine, 12), ended_job(engine, 11)
    delete(engine, later)
    with engine.begin() as writer:
        writer.execute(sa.select(items.c.item_index).limit(1))
        monkeypatch.setattr(day_removal, "_TIMEOUTS", "SET statement_timeout = '300ms'")
        assert drop_unneeded_days(engine) == 0
        monkeypatch.undo()
    delete(engine, earlier)

    assert drop_unneeded_days(engine) == 2
    assert partitions(engine) == set()


def test_day_being_read_blocks_no_other(engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    delete(engine, ended_job(engine, 12), ended_job(engine, 11))
    name = partition_name(today(engine) - 12)
    execute(engine, sa.text(f"ALTER TABLE items DETACH PARTITION {name}"))
    monkeypatch.setattr(day_removal, "_TIMEOUTS", "SET lock_timeout = '300ms'")
    with engine.begin() as backup:
        backup.execute(sa.text(f"LOCK TABLE {name} IN ACCESS SHARE MODE"))
        assert drop_unneeded_days(engine) == 1
    assert drop_unneeded_days(engine) == 1


@pytest.mark.parametrize("how", ["DETACH PARTITION", "DROP TABLE"])
def test_concurrent_drop_is_no_failure(engine: sa.Engine, database_url: str, how: str) -> None:
    delete(engine, ended_job(engine, 11))
    name = partition_name(today(engine) - 11)
    statement = f"DROP TABLE {name}" if how == "DROP TABLE" else f"ALTER TABLE items {how} {name}"

    def drop_first(*arguments: Any) -> None:
        if "DETACH" in arguments[2]:
            conftest.execute(database_url, statement)

    sa.event.listen(engine, "before_cursor_execute", drop_first)
    assert drop_unneeded_days(engine) == 1
    sa.event.remove(engine, "before_cursor_execute", drop_first)
    assert partitions(engine) == set()


def test_partition_names_are_parsed() -> None:
    for day in (0, 20_000, 30_000):
        assert day_of(partition_name(day)) == day
    assert day_of("items_20263001") is None
    assert day_of("items_2026") is None
    assert date(1970, 1, 1) + timedelta(days=20_000) == date(2024, 10, 4)


def test_one_process_holds_the_sweep_lease(engine: sa.Engine) -> None:
    assert SweepLease(engine, "sweep", "one", ttl_s=60).acquire()
    assert SweepLease(engine, "sweep", "one", ttl_s=0).acquire()
    assert SweepLease(engine, "sweep", "two", ttl_s=60).acquire()
    assert not SweepLease(engine, "sweep", "one", ttl_s=60).acquire()
    assert SweepLease(engine, "other", "one", ttl_s=60).acquire()


def test_expired_batches_are_found_by_index(engine: sa.Engine) -> None:
    job_id = ended_job(engine, 11)
    fill = sa.text("""
        INSERT INTO jobs (id, tenant_id, kind, state, endpoint, input_file_id, input_key,
            input_bytes, completion_window, created_at, completed_at, expires_at, deleted_at)
        SELECT md5('j' || n)::uuid, md5('t' || n % 1000)::uuid,
            CASE WHEN n % 3 = 0 THEN 'request' ELSE 'batch' END, 'completed', '/v1/embeddings',
            CASE WHEN n % 3 <> 0 THEN j.input_file_id END, '', 0, '24h',
            now() - n * interval '1 s', now(), now(),
            CASE WHEN n % 2 = 0 THEN now() END
        FROM generate_series(1, 20000) n, jobs j WHERE j.id = :job
    """).bindparams(sa.bindparam("job", type_=sa.Uuid))
    add_tenants = sa.text("""
        INSERT INTO tenants (id, name)
        SELECT md5('t' || n)::uuid, 't' || n FROM generate_series(0, 999) n
    """)
    execute(engine, add_tenants, fill.bindparams(job=job_id), sa.text("ANALYZE jobs"))
    with engine.begin() as connection:
        query = old_batches_query(10, 200)
        text = str(query.compile(connection, compile_kwargs={"literal_binds": True}))
        explain = f"EXPLAIN (ANALYZE, FORMAT JSON) {text}".replace("%", "%%")
        found = connection.exec_driver_sql(explain).scalar_one()
    assert "ix_jobs_kept" in str(found)
    assert found[0]["Plan"]["Actual Rows"] == 1


DUE = old_batches_query(10)


@pytest.fixture
def impatient_engine(database: DatabaseSettings) -> Iterator[sa.Engine]:
    """An engine with a short lock timeout."""
    settings = database.model_copy(update={"lock_timeout_s": 0.2})
    engine = create_engine(settings, application_name="test")
    yield engine
    engine.dispose()


@pytest.fixture
def locked_job(engine: sa.Engine) -> UUID:
    """The oldest batch; its file is not locked yet."""
    return ended_job(engine, 20)


@pytest.fixture
def holder(engine: sa.Engine, locked_job: UUID) -> Iterator[sa.Connection]:
    """A connection that locks the file of the oldest batch."""
    its = sa.select(files.c.id).where(files.c.id == job(engine, locked_job)["input_file_id"])
    with engine.connect() as connection:
        connection.execute(its.with_for_update())
        yield connection


def is_kept(engine: sa.Engine, job_id: UUID) -> bool:
    return job(engine, job_id)["deleted_at"] is None


@pytest.mark.usefixtures("holder")
def test_sweep_continues_after_a_refused_batch(
    engine: sa.Engine, impatient_engine: sa.Engine, locked_job: UUID, store: LocalObjectStore
) -> None:
    others = [ended_job(engine, 11) for _ in range(2)]
    before = RETENTION_FAILURES._value.get()

    RetentionSweep(impatient_engine, store, RetentionSettings(batch_days=10), "me").run_once()

    assert is_kept(engine, locked_job)
    assert [item_count(engine, one) for one in (locked_job, *others)] == [1, 0, 0]
    assert RETENTION_FAILURES._value.get() == before + 1


def test_run_ends_after_some_failures_and_the_next_skips_them(
    engine: sa.Engine,
    impatient_engine: sa.Engine,
    locked_job: UUID,
    holder: sa.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deletion, "FAILURES_MAX", 1)
    other = ended_job(engine, 11)
    process = BatchTombstones(impatient_engine)

    process.run_once(DUE)
    assert [is_kept(engine, one) for one in (locked_job, other)] == [True, True]
    process.run_once(DUE)
    assert [is_kept(engine, one) for one in (locked_job, other)] == [True, False]
    holder.rollback()
    process.run_once(DUE)
    assert is_kept(engine, locked_job)  # still skipped
    process.retry_refused()
    process.run_once(DUE)
    assert not is_kept(engine, locked_job)
