"""Goal: a batch whose removal Postgres refuses does not block others."""

from collections.abc import Iterator
from uuid import UUID

import pytest
import sqlalchemy as sa

from jobs.tables.files import files
from results.metrics import RETENTION_FAILURES
from results.retention import deletion
from results.retention.deletion import BatchTombstones
from results.retention.expired_data import old_batches_query
from results.retention.sweep import RetentionSweep
from results.settings import RetentionSettings
from storage.objects.local_object_store import LocalObjectStore
from storage.postgres.engines import create_engine
from storage.postgres.settings import DatabaseSettings
from tests.integration.results.outcomes import job
from tests.integration.results.test_deletion import item_count
from tests.integration.results.test_retention import ended_job

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
