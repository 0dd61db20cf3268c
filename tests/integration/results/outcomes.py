"""Builders of jobs and outcomes, and checks of their rows."""

import threading
from collections.abc import Collection
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from core.outcomes import Outcome
from core.states import CloseReason
from jobs.store.days import job_day
from jobs.tables.jobs import job_counters, jobs
from results.writer.counters import IS_BILLED
from results.writer.day_partitions import DayPartitions
from results.writer.item_writer import ItemWriter
from results.writer.job_closer import JobCloser
from results.writer.open_work import run_all
from storage.objects.errors import ObjectStoreRefusedError
from storage.objects.object_store import ObjectStore
from storage.postgres.engines import create_engine
from storage.postgres.items import items, job_slices
from storage.postgres.outbox import outbox
from storage.postgres.settings import DatabaseSettings
from tenancy.tables import usage_ledger
from tests.integration.jobs.rows import add_job, add_tenant
from topics.records.catalogue import EVENTS
from topics.records.records import ItemOutcome, JobClose, JobRef


def new_engine(database_url: str) -> sa.Engine:
    settings = DatabaseSettings(url=database_url, pool_size=4)  # type: ignore[arg-type]
    return create_engine(settings, application_name="test")


def execute(engine: sa.Engine, *statements: sa.Executable) -> None:
    """Execute statements in one transaction."""
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(statement)


def fetch(engine: sa.Engine, query: sa.Executable) -> list[sa.Row[Any]]:
    with engine.connect() as connection:
        return list(connection.execute(query))


def scalars(engine: sa.Engine, query: sa.Executable) -> list[Any]:
    """The first column of every row."""
    return [row[0] for row in fetch(engine, query)]


def count(engine: sa.Engine, table: sa.Table, *where: sa.ColumnElement[bool]) -> int:
    return int(scalars(engine, sa.select(sa.func.count()).select_from(table).where(*where))[0])


def days_ago(days: float) -> sa.TextClause:
    return sa.text(f"now() - interval '{days} days'")


def add_running_job(engine: sa.Engine, total_count: int | None, **columns: Any) -> UUID:
    """A job after validation."""
    given: dict[str, Any] = {
        "state": "in_progress",
        "total_count": total_count,
        "model": "small",
        "model_version": "1",
        "pool": "pool-small",
        "in_progress_at": sa.func.now(),
    }
    with engine.begin() as connection:
        return add_job(connection, add_tenant(connection), **(given | columns))


def write(engine: sa.Engine, job_id: UUID, *outcomes: ItemOutcome) -> None:
    ItemWriter(engine, DayPartitions(engine)).write({job_id: list(outcomes)})


def settle(engine: sa.Engine, *outcomes: ItemOutcome, **columns: Any) -> UUID:
    """A job that ends with these outcomes."""
    job_id = add_running_job(engine, len(outcomes), **columns)
    write(engine, job_id, *outcomes)
    return job_id


def close(
    engine: sa.Engine,
    job_id: UUID,
    reason: CloseReason,
    *,
    stop: threading.Event | None = None,
    **limits: int,
) -> bool:
    """Run the steps of a close until `stop`; return whether all have run."""
    closer = JobCloser(engine, DayPartitions(engine), **limits)
    return run_all(closer.close_steps(JobClose(job_id, 0, reason)), stop or threading.Event())


def outcome(index: int, **fields: Any) -> ItemOutcome:
    given: dict[str, Any] = {
        "index": index,
        "custom_id": f"request-{index}",
        "outcome": Outcome.SUCCEEDED,
        "status_code": 200,
        "body": b'{"answer":%d}' % index,
        "input_tokens": 3,
        "output_tokens": 5,
    }
    return ItemOutcome(**(given | fields))


def failed(index: int, **fields: Any) -> ItemOutcome:
    given: dict[str, Any] = {
        "outcome": Outcome.FAILED,
        "status_code": 400,
        "body": b'{"error":{"message":"no"}}',
        "input_tokens": 0,
        "output_tokens": 0,
    }
    return outcome(index, **(given | fields))


def keys(store: ObjectStore, prefix: str = "") -> set[str]:
    """The keys of all stored objects."""
    return {found.key for found in store.list(prefix)}


def record_deletions(
    monkeypatch: pytest.MonkeyPatch, store: ObjectStore, refused: Collection[str] = ()
) -> list[str]:
    """Record the keys that are deleted from now on; the store refuses some."""
    asked: list[str] = []
    delete = store.delete

    def deleting(key: str) -> None:
        asked.append(key)
        if key in refused:
            raise ObjectStoreRefusedError
        delete(key)

    monkeypatch.setattr(store, "delete", deleting)
    return asked


def today(engine: sa.Engine) -> int:
    """The day of a job that is created now."""
    return job_day(scalars(engine, sa.select(sa.func.now()))[0])


def job_ref(job_id: UUID, day: int = 0) -> JobRef:
    return JobRef(
        job_id=job_id,
        day=day,
        tenant_id=job_id,
        model="small",
        model_version="1",
        pool="pool-small",
        endpoint="/v1/embeddings",
        input_key="files/none",
        deadline_s=0,
    )


def item_table(engine: sa.Engine, job_id: UUID) -> list[sa.Row[Any]]:
    return fetch(
        engine, sa.select(items).where(items.c.job_id == job_id).order_by(items.c.item_index)
    )


def counters(engine: sa.Engine, job_id: UUID) -> sa.RowMapping:
    (row,) = fetch(engine, sa.select(job_counters).where(job_counters.c.job_id == job_id))
    return row._mapping


def job(engine: sa.Engine, job_id: UUID) -> sa.RowMapping:
    (row,) = fetch(engine, sa.select(jobs).where(jobs.c.id == job_id))
    return row._mapping


def ledger(engine: sa.Engine, job_id: UUID) -> dict[str, int]:
    """The sums over the ledger rows of a job."""
    names = ("item_count", "input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens")
    sums = [sa.func.coalesce(sa.func.sum(usage_ledger.c[name]), 0).label(name) for name in names]
    (row,) = fetch(engine, sa.select(*sums).where(usage_ledger.c.job_id == job_id))
    return {name: int(total) for name, total in row._mapping.items()}


def event_count(engine: sa.Engine) -> int:
    return count(engine, outbox, outbox.c.topic == EVENTS.name)


def assert_order_is_complete(engine: sa.Engine, job_id: UUID) -> None:
    """The order of results contains every row once, without gaps."""
    query = sa.select(job_slices).where(job_slices.c.job_id == job_id)
    order: list[int] = []
    for one in fetch(engine, query.order_by(job_slices.c.first_sequence)):
        assert one.first_sequence == len(order)
        assert one.item_indexes
        order += one.item_indexes
    assert sorted(order) == [row.item_index for row in item_table(engine, job_id)]


def assert_totals_agree(engine: sa.Engine, job_id: UUID) -> None:
    """Counters, ledger and rows agree, as an audit checks."""
    rows, counted = item_table(engine, job_id), counters(engine, job_id)
    if job(engine, job_id)["kind"] == "batch":
        assert_order_is_complete(engine, job_id)
    billed = ledger(engine, job_id)
    for kind in Outcome:
        assert counted[kind.label] == sum(row.outcome == kind for row in rows)
    assert billed == {name: counted.get(name, billed["item_count"]) for name in billed}
    sums = [sa.func.coalesce(sa.func.sum(items.c[name]), 0) for name in list(billed)[1:]]
    statement = sa.select(sa.func.count(), *sums).where(items.c.job_id == job_id, IS_BILLED)
    assert list(billed.values()) == [int(total) for total in fetch(engine, statement)[0]]
