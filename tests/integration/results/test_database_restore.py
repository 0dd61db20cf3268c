"""Goal: after a restore, bills of calls are restored from the log, each once."""

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec
import pytest
import sqlalchemy as sa

from core.ids import new_uuid
from results.rebuilding.database_restore import recover
from results.tables import billed_calls
from tenancy.response_cache import NO_JOB
from tenancy.tables import usage_ledger
from tests.integration.results.outcomes import add_running_job, job_ref, outcome
from tests.integration.results.test_writer import lag, running, send
from tests.support.until import until
from topics.clients.producer import RecordProducer
from topics.records.records import CallRef, Outcomes
from topics.settings import KafkaSettings

HIT = "the model of an answer out of the cache"


@pytest.fixture
def producer(kafka: KafkaSettings) -> Iterator[RecordProducer]:
    with closing(RecordProducer(kafka, client_id="test")) as producer:
        yield producer


def report(producer: RecordProducer) -> UUID:
    call = new_uuid()
    job = msgspec.structs.replace(job_ref(call), call=CallRef("c", 0))
    send(producer, call, Outcomes(job, [outcome(0, body=b"")]))
    producer.flush(10)
    return call


def billed(engine: sa.Engine) -> tuple[set[object], int]:
    """The billed calls, and how many the ledger has."""
    with engine.connect() as connection:
        known = set(connection.scalars(sa.select(billed_calls.c.request_id)))
        ours = sa.select(sa.func.sum(usage_ledger.c.item_count)).where(usage_ledger.c.model != HIT)
        return known, int(connection.scalar(ours) or 0)


def add_later_hit(engine: sa.Engine) -> None:
    """Add a cache hit to the ledger, dated long after all reports."""
    names = [column.name for column in usage_ledger.c]
    row: dict[str, object] = {name: 0 for name in names if name.endswith("_tokens")}
    row |= {"tenant_id": new_uuid(), "job_id": NO_JOB, "model": HIT, "model_version": "1"}
    row |= {"item_count": 1, "created_at": datetime.now(UTC) + timedelta(hours=3)}
    with engine.begin() as connection:
        connection.execute(usage_ledger.insert(), row)


def restore_before(engine: sa.Engine, call: UUID) -> None:
    """Restore the tables to before the last call was billed."""
    with engine.begin() as connection:
        connection.execute(sa.delete(billed_calls).where(billed_calls.c.request_id == call))
        connection.execute(sa.text("ALTER TABLE usage_ledger DISABLE TRIGGER append_only"))
        newest = sa.select(sa.func.max(usage_ledger.c.id)).scalar_subquery()
        connection.execute(sa.delete(usage_ledger).where(usage_ledger.c.id == newest))
        connection.execute(sa.text("ALTER TABLE usage_ledger ENABLE TRIGGER append_only"))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("has_job", [True, False])
def test_bills_after_the_backup_are_restored(
    engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer, *, known: bool, has_job: bool
) -> None:
    """With and without a bill and an unfinished job in the backup."""
    calls = set()
    with running(engine, kafka):
        for _ in range(1 + known):
            last = report(producer)
            calls.add(last)
            until(lambda: billed(engine)[0] == calls)
        until(lambda: lag(kafka) == 0)
    restore_before(engine, last)
    add_later_hit(engine)
    assert billed(engine) == (calls - {last}, int(known))
    if has_job:  # newer than the reports, which are before its records on the log
        add_running_job(engine, 3, created_at=datetime.now(UTC) + timedelta(minutes=20))

    recovered = recover(engine, kafka)
    with running(engine, kafka):
        until(lambda: lag(kafka) == 0)

    assert recovered.job_count == int(has_job)
    assert recovered.is_log_complete
    assert billed(engine) == (calls, len(calls))
