"""Goal: a deleted batch is hidden; its bodies and messages are removed, its ledger entries stay."""

import threading
from collections.abc import Iterator
from functools import partial
from uuid import UUID

import pytest
import sqlalchemy as sa

from core.ids import new_uuid
from core.object_names import answer_prefix
from jobs.errors import JobNotEndedError, JobNotFoundError
from jobs.store.batches import cancel_job, find_job, list_jobs
from jobs.store.days import job_day
from jobs.store.keyset_pages import PageCursor
from jobs.tables.files import files, job_inputs
from jobs.tables.jobs import job_counters, job_cursors, job_leases, jobs
from jobs.tables.retries import dead_items, item_attempts, item_copies, item_retries
from results.retention import batch_removal
from results.retention.batch_removal import BatchDataRemoval, due_query, messages_query, slice_query
from results.retention.deletion import delete_batch
from results.views.dead_letter_queries import (
    DeadLetterPosition,
    find_dead_letter,
    list_dead_letters,
)
from results.webhooks.events.messages import ITEM_FAILED
from results.webhooks.tables import (
    webhook_attempts,
    webhook_deliveries,
    webhook_endpoints,
    webhook_messages,
)
from results.writer.day_partitions import DayPartitions
from storage.objects.errors import ObjectStoreUnavailableError
from storage.objects.local_object_store import LocalObjectStore
from storage.objects.object_store import ObjectInfo, write_object
from storage.postgres.engines import create_engine
from storage.postgres.items import items, job_slices
from storage.postgres.settings import DatabaseSettings
from tenancy.deletions import deletions
from tenancy.tables import usage_ledger
from tests.integration.jobs.rows import add_file
from tests.integration.results.outcomes import (
    add_running_job,
    count,
    execute,
    failed,
    fetch,
    job,
    keys,
    ledger,
    outcome,
    scalars,
    write,
)
from tests.integration.results.test_finalisation import finalise_next

OF_A_JOB = (
    items, job_slices, item_copies, item_attempts, item_retries, dead_items, job_counters,
    job_cursors, job_leases, job_inputs,
)  # fmt: skip
ROWS_MAX = 100_000
KEY_ID = new_uuid()
OUTCOMES = [outcome(0), failed(1), outcome(2), outcome(3)]


def ended(engine: sa.Engine, store: LocalObjectStore) -> UUID:
    """A terminal batch with rows in every table."""
    job_id = add_running_job(engine, 4, metadata={"who": "me"})
    write(engine, job_id, failed(2, status_code=500, retryable=True))
    write(engine, job_id, *OUTCOMES)
    finalise_next(engine, store)
    appended = f"files/more-{job_id.hex}"
    for key in (f"files/{job_id.hex}", f"{answer_prefix(job_id)}late", appended):
        write_object(store, key, b'{"custom_id":"a"}\n')
    with engine.begin() as connection:
        file = add_file(connection, job(engine, job_id)["tenant_id"], object_key=appended)
        copied = {"item_index": 3, "original_index": 0, "custom_id": "mine"}
        connection.execute(item_copies.insert().values(job_id=job_id, **copied))
        given = {"number": 1, "file_id": file.id, "object_key": "k", "size_bytes": 1}
        given |= {"state": "accepted", "first_index": 4, "item_count": 1}
        connection.execute(job_inputs.insert().values(job_id=job_id, **given))
    return job_id


def delete(engine: sa.Engine, *job_ids: UUID) -> None:
    for job_id in job_ids:
        tenant_id = job(engine, job_id)["tenant_id"]
        with engine.begin() as connection:
            delete_batch(connection, tenant_id, job_id, key_id=KEY_ID)


def remove(engine: sa.Engine, store: LocalObjectStore) -> None:
    BatchDataRemoval(engine, store).run_once(ROWS_MAX)


def item_count(engine: sa.Engine, job_id: UUID) -> int:
    return count(engine, items, items.c.job_id == job_id)


def assert_put_off(engine: sa.Engine, job_id: UUID) -> None:
    """The removal of a job is due later; make it due again."""
    put_off = sa.select(jobs.c.removal_due_at > sa.func.now()).where(jobs.c.id == job_id)
    assert scalars(engine, put_off) == [True]
    execute(engine, sa.update(jobs).values(removal_due_at=sa.func.now()))


def test_deleted_batch_is_hidden_at_once(engine: sa.Engine, store: LocalObjectStore) -> None:
    job_id = ended(engine, store)
    tenant_id = job(engine, job_id)["tenant_id"]
    delete(engine, job_id)

    with engine.begin() as connection:
        assert list_jobs(connection, tenant_id, PageCursor(limit=10)).rows == []
        nothing = list_dead_letters(connection, tenant_id, job_id=None, after=None, limit=10)
        assert nothing.rows == []
        for ask in (find_job, cancel_job, partial(delete_batch, key_id=KEY_ID)):
            with pytest.raises(JobNotFoundError):
                ask(connection, tenant_id, job_id)
        with pytest.raises(Exception, match="No such dead letter"):
            find_dead_letter(connection, tenant_id, DeadLetterPosition(job_id, 1))
        row = connection.execute(sa.select(jobs).where(jobs.c.id == job_id)).one()
        assert (row.metadata, row.errors, row.state) == (None, None, "completed")
        its = files.c.object_key.contains(job_id.hex)
        ends = connection.execute(sa.select(files.c.deleted_at).where(its)).scalars().all()
        assert len(ends) == 4
        assert None not in ends


def test_removal_keeps_the_ledger_and_survives_redelivery(
    engine: sa.Engine, store: LocalObjectStore
) -> None:
    job_id, kept = ended(engine, store), ended(engine, store)
    before = keys(store)
    bill = ledger(engine, job_id)
    assert bill["item_count"] == 4
    delete(engine, job_id)
    write(engine, job_id, *OUTCOMES)

    remove(engine, store)
    write(engine, job_id, *OUTCOMES)

    rows = {table.name: count(engine, table, table.c.job_id == job_id) for table in OF_A_JOB}
    assert rows == {table.name: 0 for table in OF_A_JOB}
    assert keys(store) == {key for key in before if kept.hex in key}
    assert item_count(engine, kept) == 4
    assert ledger(engine, job_id) == bill
    assert fetch(engine, due_query(1)) == []
    told = fetch(engine, sa.select(deletions).order_by(deletions.c.id))
    assert [(row.what, row.subject_id, row.key_id) for row in told] == [
        ("batch", job_id, KEY_ID),
        ("batch_bodies", job_id, None),
    ]
    assert told[0].counts == {"items": 4, "files": 4}
    assert told[1].counts["objects"] == 5


def test_running_batch_is_not_deleted(engine: sa.Engine) -> None:
    job_id = add_running_job(engine, 4)
    with engine.connect() as connection:
        tenant_id = connection.execute(sa.select(jobs.c.tenant_id)).scalar_one()
        with pytest.raises(JobNotEndedError, match="in_progress"):
            delete_batch(connection, tenant_id, job_id, key_id=KEY_ID)
        with pytest.raises(JobNotFoundError):
            delete_batch(connection, new_uuid(), job_id, key_id=KEY_ID)


def test_file_is_deleted_with_the_last_batch_that_names_it(
    engine: sa.Engine, store: LocalObjectStore
) -> None:
    job_id, other = ended(engine, store), ended(engine, store)
    row = job(engine, job_id)
    named = {name: row[name] for name in ("input_file_id", "input_key")}
    execute(engine, sa.update(jobs).where(jobs.c.id == other).values(named))
    delete(engine, job_id)
    remove(engine, store)
    assert f"files/{job_id.hex}" in keys(store)
    delete(engine, other)
    remove(engine, store)
    assert f"files/{job_id.hex}" not in keys(store)


def test_interrupted_removal_continues(
    engine: sa.Engine, store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_removal, "SLICE_ROWS", 1)
    job_id = ended(engine, store)
    delete(engine, job_id)
    removal = BatchDataRemoval(engine, store)
    assert removal.run_once(2) == 2
    assert item_count(engine, job_id) == 2
    with monkeypatch.context() as broken:

        def unavailable(_: str) -> None:
            raise ObjectStoreUnavailableError

        broken.setattr(store, "delete", unavailable)
        removal.run_once(ROWS_MAX)
    assert item_count(engine, job_id) == 0
    assert_put_off(engine, job_id)
    removal.run_once(ROWS_MAX)
    assert keys(store) == set()


def test_a_throttling_store_is_tried_for_one_batch_of_a_run(
    engine: sa.Engine, store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        delete(engine, ended(engine, store))
    tried: list[str] = []

    def throttled(prefix: str) -> Iterator[ObjectInfo]:
        tried.append(prefix)
        raise ObjectStoreUnavailableError

    removal = BatchDataRemoval(engine, store)
    with monkeypatch.context() as throttling:
        throttling.setattr(store, "list", throttled)
        removal.run_once(ROWS_MAX)
        removal.run_once(ROWS_MAX)
    assert len(set(tried)) == len(tried) == 2  # another batch in each run


def test_stop_between_objects_records_no_removal(
    engine: sa.Engine, store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete(engine, ended(engine, store))
    stop = threading.Event()
    real_list = store.list

    def stopped_list(prefix: str) -> Iterator[ObjectInfo]:
        stop.set()
        return real_list(prefix)

    with monkeypatch.context() as stopping:
        stopping.setattr(store, "list", stopped_list)
        BatchDataRemoval(engine, store, stop.is_set).run_once(ROWS_MAX)

    assert [key for key in keys(store) if key.startswith("results/")]
    named = sa.select(files.c.removed_at).where(files.c.object_key.startswith("results/"))
    assert set(scalars(engine, named)) == {None}
    assert scalars(engine, sa.select(deletions.c.what)) == ["batch"]

    remove(engine, store)
    assert keys(store) == set()
    assert fetch(engine, due_query(1)) == []


def test_failed_removal_blocks_no_other(
    engine: sa.Engine, database: DatabaseSettings, store: LocalObjectStore
) -> None:
    held, other = ended(engine, store), ended(engine, store)
    delete(engine, held, other)
    impatient = create_engine(
        database.model_copy(update={"lock_timeout_s": 0.2}), application_name="test"
    )
    with engine.connect() as holder:
        holder.execute(sa.select(items).where(items.c.job_id == held).with_for_update())
        remove(impatient, store)
    impatient.dispose()
    assert (item_count(engine, held), item_count(engine, other)) == (4, 0)
    assert_put_off(engine, held)
    remove(engine, store)
    assert item_count(engine, held) == 0


def test_removal_serves_batches_round_robin(
    engine: sa.Engine, store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_removal, "SLICE_ROWS", 20)
    large, small = ended(engine, store), ended(engine, store)
    fill(engine, large, range(4, 400))
    delete(engine, large, small)
    removal = BatchDataRemoval(engine, store)

    assert removal.run_once(100) >= 100

    assert item_count(engine, large) > 200
    assert [key for key in keys(store) if small.hex in key] == []
    assert [row.id for row in fetch(engine, due_query(2))] == [large]
    removal.run_once(ROWS_MAX)
    assert item_count(engine, large) == 0


def fill(engine: sa.Engine, job_id: UUID, indexes: range) -> int:
    """Add rows of succeeded items; return the day of the job."""
    day = job_day(job(engine, job_id)["created_at"])
    DayPartitions(engine).ensure([day])
    statement = sa.text(
        "INSERT INTO items (job_id, job_day, item_index, outcome, status_code, attempt,"
        " input_tokens, output_tokens, cached_tokens, reasoning_tokens)"
        " SELECT :job, :day, :first + n, 1, 200, 1, 0, 0, 0, 0"
        " FROM generate_series(0, cast(:count AS int) - 1) n"
    ).bindparams(job=job_id, day=day, first=indexes[0], count=len(indexes))
    execute(engine, statement)
    return day


def test_slice_reads_only_the_rows_it_removes(engine: sa.Engine) -> None:
    job_id = add_running_job(engine, 20_000)
    day = fill(engine, job_id, range(20_000))
    execute(engine, sa.text("ANALYZE items"))
    with engine.begin() as connection:
        query = slice_query(items, job_id, day)
        text = str(query.compile(connection, compile_kwargs={"literal_binds": True}))
        explain = f"EXPLAIN (ANALYZE, FORMAT JSON) {text}".replace("%", "%%")
        plan = str(connection.exec_driver_sql(explain).scalar_one())
    assert "Seq Scan" not in plan
    assert count(engine, items) == 20_000 - batch_removal.SLICE_ROWS


@pytest.mark.parametrize("table", [usage_ledger, deletions])
@pytest.mark.parametrize("change", ["DELETE FROM {}", "UPDATE {} SET id = id", "TRUNCATE {}"])
def test_append_only_tables_refuse_changes(engine: sa.Engine, table: sa.Table, change: str) -> None:
    with engine.connect() as connection, pytest.raises(sa.exc.IntegrityError, match="append-only"):
        connection.execute(sa.text(change.format(table.name)))


def add_messages(engine: sa.Engine, job_id: UUID, event_type: str, number: int) -> None:
    """Add messages about a job, each with a delivery and an attempt."""
    endpoint_id, tenant_id = new_uuid(), job(engine, job_id)["tenant_id"]
    ids = [new_uuid() for _ in range(number)]
    endpoint = {"id": endpoint_id, "name": "", "url": "", "event_types": []}
    its = {"tenant_id": tenant_id, "lane": "e"}
    told = {"tenant_id": tenant_id, "job_id": job_id, "event_type": event_type, "body": b"{}"}
    tried = {"number": 1, "started_at": sa.func.now(), "duration_ms": 1}
    of = [{"endpoint_id": endpoint_id, "message_id": x} for x in ids]
    execute(
        engine,
        webhook_endpoints.insert().values(endpoint | its),
        webhook_messages.insert().values([told | {"id": x} for x in ids]),
        webhook_deliveries.insert().values([one | its for one in of]),
        webhook_attempts.insert().values([one | tried for one in of]),
    )


def test_messages_of_a_deleted_batch_are_removed_in_slices(
    engine: sa.Engine, store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_removal, "SLICE_MESSAGES", 2)
    job_id, kept = ended(engine, store), ended(engine, store)
    add_messages(engine, job_id, ITEM_FAILED, 5)
    add_messages(engine, job_id, "batch.completed", 1)
    add_messages(engine, kept, ITEM_FAILED, 1)
    with engine.connect() as delivering:
        its = sa.select(webhook_messages.c.id).where(webhook_messages.c.job_id == job_id)
        delivering.execute(its.with_for_update())
        with engine.begin() as connection:
            connection.execute(sa.text("SET LOCAL lock_timeout = '300ms'"))
            tenant_id = job(engine, job_id)["tenant_id"]
            delete_batch(connection, tenant_id, job_id, key_id=new_uuid())
    with engine.begin() as connection:
        assert connection.execute(messages_query(job_id)).rowcount == 2

    remove(engine, store)

    query = sa.select(webhook_messages.c.job_id, webhook_messages.c.event_type)
    assert {tuple(row) for row in fetch(engine, query)} == {
        (job_id, "batch.completed"),
        (kept, ITEM_FAILED),
    }
    assert [count(engine, table) for table in (webhook_deliveries, webhook_attempts)] == [2, 2]
