"""Goal: a deleted batch is hidden and its bodies are removed; its ledger entries stay."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from core.clock import SystemClock
from core.ids import new_uuid
from core.object_names import answer_prefix
from jobs.errors import JobNotEndedError, JobNotFoundError
from jobs.leasing.leases import claim
from jobs.store.batches import cancel_job, find_job, list_jobs
from jobs.store.files import NewFile, insert_file
from jobs.store.keyset_pages import PageCursor
from jobs.tables.files import files, job_inputs
from jobs.tables.jobs import job_counters, job_cursors, job_leases, jobs
from jobs.tables.retries import dead_items, item_attempts, item_copies, item_retries
from results.finaliser.finalisation import READY, finalise
from results.retention import batch_removal
from results.retention.batch_removal import BatchDataRemoval, due_query, slice_query
from results.retention.deletion import delete_batch
from results.views.dead_letter_queries import (
    DeadLetterPosition,
    find_dead_letter,
    list_dead_letters,
)
from results.writer.day_partitions import DayPartitions
from results.writer.item_writer import ItemWriter
from storage.objects.errors import ObjectStoreUnavailableError
from storage.objects.local_object_store import LocalObjectStore
from storage.objects.object_store import ObjectInfo
from storage.postgres.engines import create_engine
from storage.postgres.items import items, job_slices
from storage.postgres.settings import DatabaseSettings
from tenancy.deletions import deletions
from tenancy.tables import usage_ledger
from tests.integration.results.outcomes import add_running_job, failed, ledger, outcome
from topics.records.records import ItemOutcome

OF_A_JOB = (
    items, job_slices, item_copies, item_attempts, item_retries, dead_items, job_counters,
    job_cursors, job_leases, job_inputs,
)  # fmt: skip
ROWS_MAX = 100_000


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path / "objects", clock=SystemClock())


@pytest.fixture
def key_id() -> UUID:
    return new_uuid()


def put(store: LocalObjectStore, key: str) -> str:
    with store.begin_upload(key) as upload:
        upload.write(b'{"custom_id":"a"}\n')
        upload.complete()
    return key


def add_file(engine: sa.Engine, tenant_id: UUID, key: str) -> UUID:
    file = NewFile(
        file_id=new_uuid(), tenant_id=tenant_id, purpose="batch", filename="in.jsonl",
        object_key=key, size_bytes=1, sha256="", expires_after_s=3600,
    )  # fmt: skip
    with engine.begin() as connection:
        insert_file(connection, file)
    return file.file_id


def outcomes() -> list[ItemOutcome]:
    return [outcome(0), failed(1), outcome(2), outcome(3)]


def ended(engine: sa.Engine, store: LocalObjectStore, **columns: Any) -> tuple[UUID, UUID]:
    """A terminal batch with rows in every table; its id and its tenant's."""
    job_id = add_running_job(engine, 4, **columns)
    with engine.begin() as connection:
        tenant_id: UUID = connection.scalar(sa.select(jobs.c.tenant_id).where(jobs.c.id == job_id))  # type: ignore[assignment]
    put(store, f"files/{job_id.hex}")
    with engine.begin() as connection:
        of_job = sa.update(jobs).where(jobs.c.id == job_id)
        connection.execute(of_job.values(metadata={"who": "me"}))
    retried = failed(2, status_code=500, retryable=True)
    writer = ItemWriter(engine, DayPartitions(engine))
    writer.write({job_id: [retried]})
    writer.write({job_id: outcomes()})
    with engine.begin() as connection:
        (lease,) = claim(connection, role="finaliser", holder="one", ttl_s=60, limit=1, where=READY)
    finalise(engine, store, lease, check=lambda: None)
    put(store, f"{answer_prefix(job_id)}late")
    with engine.begin() as connection:
        connection.execute(
            item_copies.insert().values(
                job_id=job_id, item_index=3, original_index=0, custom_id="mine"
            )
        )
    with engine.begin() as connection:
        appended = add_file(engine, tenant_id, put(store, f"files/more-{job_id.hex}"))
        connection.execute(
            job_inputs.insert().values(
                job_id=job_id,
                number=1,
                file_id=appended,
                object_key="k",
                size_bytes=1,
                state="accepted",
                first_index=4,
                item_count=1,
            )
        )
    return job_id, tenant_id


def delete(engine: sa.Engine, tenant_id: UUID, job_id: UUID, key_id: UUID) -> None:
    with engine.begin() as connection:
        delete_batch(connection, tenant_id, job_id, key_id=key_id)


def count(engine: sa.Engine, table: sa.Table, job_id: UUID) -> int:
    with engine.connect() as connection:
        query = sa.select(sa.func.count()).select_from(table).where(table.c.job_id == job_id)
        return connection.scalar(query) or 0


def stored(store: LocalObjectStore) -> set[str]:
    return {found.key for found in store.list("")}


def test_deleted_batch_is_hidden_at_once(
    engine: sa.Engine, store: LocalObjectStore, key_id: UUID
) -> None:
    job_id, tenant_id = ended(engine, store)
    delete(engine, tenant_id, job_id, key_id)

    with engine.begin() as connection:
        assert list_jobs(connection, tenant_id, PageCursor(limit=10)).rows == []
        nothing = list_dead_letters(connection, tenant_id, job_id=None, after=None, limit=10)
        assert nothing.rows == []
        for ask in (find_job, cancel_job):
            with pytest.raises(JobNotFoundError):
                ask(connection, tenant_id, job_id)
        with pytest.raises(Exception, match="No such dead letter"):
            find_dead_letter(connection, tenant_id, DeadLetterPosition(job_id, 1))
        with pytest.raises(JobNotFoundError):
            delete_batch(connection, tenant_id, job_id, key_id=key_id)
        row = connection.execute(sa.select(jobs).where(jobs.c.id == job_id)).one()
        assert (row.metadata, row.errors, row.state) == (None, None, "completed")
        its = files.c.object_key.contains(job_id.hex)
        ends = connection.execute(sa.select(files.c.deleted_at).where(its)).scalars().all()
        assert len(ends) == 4
        assert None not in ends


def test_removal_keeps_the_ledger(engine: sa.Engine, store: LocalObjectStore, key_id: UUID) -> None:
    job_id, tenant_id = ended(engine, store)
    kept, _ = ended(engine, store)
    before = stored(store)
    bill = ledger(engine, job_id)
    assert bill["item_count"] == 4
    delete(engine, tenant_id, job_id, key_id)

    BatchDataRemoval(engine, store).run_once(ROWS_MAX)

    assert {table.name: count(engine, table, job_id) for table in OF_A_JOB} == {
        table.name: 0 for table in OF_A_JOB
    }
    assert stored(store) == {key for key in before if kept.hex in key}
    assert count(engine, items, kept) == 4
    assert ledger(engine, job_id) == bill
    with engine.connect() as connection:
        assert connection.execute(due_query(1)).one_or_none() is None
        told = connection.execute(sa.select(deletions).order_by(deletions.c.id)).all()
    assert [(row.what, row.subject_id, row.key_id) for row in told] == [
        ("batch", job_id, key_id),
        ("batch_bodies", job_id, None),
    ]
    assert told[0].counts == {"items": 4, "files": 4}
    assert told[1].counts["objects"] == 5


def test_redelivered_record_restores_nothing_of_a_deleted_batch(
    engine: sa.Engine, store: LocalObjectStore, key_id: UUID
) -> None:
    job_id, tenant_id = ended(engine, store)
    bill = ledger(engine, job_id)
    delete(engine, tenant_id, job_id, key_id)
    writer = ItemWriter(engine, DayPartitions(engine))
    writer.write({job_id: outcomes()})
    BatchDataRemoval(engine, store).run_once(ROWS_MAX)
    writer.write({job_id: outcomes()})
    assert count(engine, items, job_id) == 0
    assert ledger(engine, job_id) == bill


def test_running_batch_is_not_deleted(engine: sa.Engine, key_id: UUID) -> None:
    job_id = add_running_job(engine, 4)
    with engine.connect() as connection:
        tenant_id = connection.execute(sa.select(jobs.c.tenant_id)).scalar_one()
        with pytest.raises(JobNotEndedError, match="in_progress"):
            delete_batch(connection, tenant_id, job_id, key_id=key_id)
        with pytest.raises(JobNotFoundError):
            delete_batch(connection, new_uuid(), job_id, key_id=key_id)


def test_file_is_deleted_with_the_last_batch_that_names_it(
    engine: sa.Engine, store: LocalObjectStore, key_id: UUID
) -> None:
    job_id, tenant_id = ended(engine, store)
    other, its_tenant = ended(engine, store)
    with engine.begin() as connection:
        shared = sa.select(jobs.c.input_file_id).where(jobs.c.id == job_id).scalar_subquery()
        key = sa.select(jobs.c.input_key).where(jobs.c.id == job_id).scalar_subquery()
        connection.execute(
            sa.update(jobs).where(jobs.c.id == other).values(input_file_id=shared, input_key=key)
        )
    delete(engine, tenant_id, job_id, key_id)
    BatchDataRemoval(engine, store).run_once(ROWS_MAX)
    assert f"files/{job_id.hex}" in stored(store)
    delete(engine, its_tenant, other, key_id)
    BatchDataRemoval(engine, store).run_once(ROWS_MAX)
    assert f"files/{job_id.hex}" not in stored(store)


def test_interrupted_removal_continues(
    engine: sa.Engine, store: LocalObjectStore, key_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_removal, "SLICE_ROWS", 1)
    job_id, tenant_id = ended(engine, store)
    delete(engine, tenant_id, job_id, key_id)
    removal = BatchDataRemoval(engine, store)
    assert removal.run_once(2) == 2
    assert count(engine, items, job_id) == 2
    with monkeypatch.context() as broken:

        def unavailable(_: str) -> None:
            raise ObjectStoreUnavailableError

        broken.setattr(store, "delete", unavailable)
        removal.run_once(ROWS_MAX)
    assert count(engine, items, job_id) == 0
    with engine.begin() as connection:
        put_off = sa.select(jobs.c.removal_due_at > sa.func.now()).where(jobs.c.id == job_id)
        assert connection.scalar(put_off)
        connection.execute(sa.update(jobs).values(removal_due_at=sa.func.now()))
    removal.run_once(ROWS_MAX)
    assert stored(store) == set()


def test_stop_between_objects_records_no_removal(
    engine: sa.Engine, store: LocalObjectStore, key_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, tenant_id = ended(engine, store)
    delete(engine, tenant_id, job_id, key_id)
    stop = threading.Event()
    real_list = store.list

    def stopped_list(prefix: str) -> Iterator[ObjectInfo]:
        stop.set()
        return real_list(prefix)

    with monkeypatch.context() as stopping:
        stopping.setattr(store, "list", stopped_list)
        BatchDataRemoval(engine, store, stop.is_set).run_once(ROWS_MAX)

    assert [key for key in stored(store) if key.startswith("results/")]
    with engine.connect() as connection:
        named = sa.select(files.c.removed_at).where(files.c.object_key.startswith("results/"))
        assert set(connection.scalars(named)) == {None}
        assert connection.scalars(sa.select(deletions.c.what)).all() == ["batch"]

    BatchDataRemoval(engine, store).run_once(ROWS_MAX)
    assert stored(store) == set()
    with engine.connect() as connection:
        assert connection.execute(due_query(1)).one_or_none() is None


def test_failed_removal_blocks_no_other(
    engine: sa.Engine, database: DatabaseSettings, store: LocalObjectStore, key_id: UUID
) -> None:
    jobs_of = [ended(engine, store) for _ in range(2)]
    for job_id, tenant_id in jobs_of:
        delete(engine, tenant_id, job_id, key_id)
    (held, _), (other, _) = jobs_of
    impatient = create_engine(
        database.model_copy(update={"lock_timeout_s": 0.2}), application_name="test"
    )
    with engine.connect() as holder:
        holder.execute(sa.select(items).where(items.c.job_id == held).with_for_update())
        BatchDataRemoval(impatient, store).run_once(ROWS_MAX)
    impatient.dispose()
    assert (count(engine, items, held), count(engine, items, other)) == (4, 0)
    with engine.begin() as connection:
        put_off = sa.select(jobs.c.removal_due_at > sa.func.now()).where(jobs.c.id == held)
        assert connection.scalar(put_off)
        connection.execute(sa.update(jobs).values(removal_due_at=sa.func.now()))
    BatchDataRemoval(engine, store).run_once(ROWS_MAX)
    assert count(engine, items, held) == 0


def test_removal_serves_batches_round_robin(
    engine: sa.Engine, store: LocalObjectStore, key_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_removal, "SLICE_ROWS", 20)
    large, small = ended(engine, store), ended(engine, store)
    fill(engine, large[0], range(4, 400))
    for job_id, tenant_id in (large, small):
        delete(engine, tenant_id, job_id, key_id)
    removal = BatchDataRemoval(engine, store)

    assert removal.run_once(100) >= 100

    assert count(engine, items, large[0]) > 200
    assert [key for key in stored(store) if small[0].hex in key] == []
    with engine.connect() as connection:
        assert connection.execute(due_query(2)).one().id == large[0]
    removal.run_once(ROWS_MAX)
    assert count(engine, items, large[0]) == 0


def fill(engine: sa.Engine, job_id: UUID, indexes: range) -> int:
    """Add rows of succeeded items; return the day of the job."""
    with engine.begin() as connection:
        day: int = connection.scalar(sa.text("SELECT now()::date - DATE '1970-01-01'")) or 0
    DayPartitions(engine).ensure([day])
    with engine.begin() as connection:
        connection.execute(
            sa.text(
                "INSERT INTO items (job_id, job_day, item_index, outcome, status_code, attempt,"
                " input_tokens, output_tokens, cached_tokens, reasoning_tokens)"
                " SELECT :job, :day, :first + n, 1, 200, 1, 0, 0, 0, 0"
                " FROM generate_series(0, cast(:count AS int) - 1) n"
            ).bindparams(sa.bindparam("job", type_=sa.Uuid)),
            {"job": job_id, "day": day, "first": indexes[0], "count": len(indexes)},
        )
    return day


def test_slice_reads_only_the_rows_it_removes(engine: sa.Engine) -> None:
    job_id = add_running_job(engine, 20_000)
    day = fill(engine, job_id, range(20_000))
    with engine.begin() as connection:
        connection.execute(sa.text("ANALYZE items"))
        text = str(
            slice_query(items, job_id, day).compile(
                connection, compile_kwargs={"literal_binds": True}
            )
        )
        explain = f"EXPLAIN (ANALYZE, FORMAT JSON) {text}".replace("%", "%%")
        plan = str(connection.exec_driver_sql(explain).scalar_one())
        assert "Seq Scan" not in plan
        left = connection.scalar(sa.select(sa.func.count()).select_from(items))
    assert left == 20_000 - batch_removal.SLICE_ROWS


@pytest.mark.parametrize("table", [usage_ledger, deletions])
@pytest.mark.parametrize("change", ["DELETE FROM {}", "UPDATE {} SET id = id", "TRUNCATE {}"])
def test_append_only_tables_refuse_changes(engine: sa.Engine, table: sa.Table, change: str) -> None:
    with engine.connect() as connection, pytest.raises(sa.exc.IntegrityError, match="append-only"):
        connection.execute(sa.text(change.format(table.name)))
