"""Goal: on a real log the writer counts every outcome once, despite crashes and redelivery."""

import threading
from uuid import uuid4

import sqlalchemy as sa

from core.errors import SchemaTooNewError
from core.states import CloseReason
from jobs.store.job_options import crash_budget
from results.metrics import DATABASE_RETRIES
from results.rebuilding.rebuild import RebuildOutcome
from storage.postgres.engines import DATABASE_UNAVAILABLE
from tests.integration.results.job_log import DEADLINE_S, JobLog, running
from tests.integration.results.outcomes import (
    add_running_job,
    assert_totals_agree,
    item_table,
    job,
    job_ref,
    new_engine,
)
from tests.support.until import until
from topics.records.catalogue import RESULTS
from topics.records.records import JobClose, Outcomes


def test_process_ends_on_the_log_close_their_job_once(engine: sa.Engine, log: JobLog) -> None:
    job_id = add_running_job(engine, 60)
    ends = [Outcomes(job_ref(job_id), [], [uuid4()]) for _ in range(crash_budget(60))]
    log.send_items(job_id, range(20))
    log.write(job_id, *ends, *ends)
    assert job(engine, job_id)["close_reason"] is None

    log.write(job_id, Outcomes(job_ref(job_id), [], [uuid4()]))
    assert job(engine, job_id)["close_reason"] == "crash_budget"

    log.write(job_id, JobClose(job_id, 0, CloseReason.FAILURE_BUDGET, crash_budget=True))
    assert [row.outcome for row in item_table(engine, job_id)] == [1] * 20 + [3] * 40
    assert job(engine, job_id)["settled_at"]
    assert_totals_agree(engine, job_id)
    rows, read = log.tally(job_id)
    assert read.tally.fingerprints.prints == rows.prints
    assert log.rebuild(job_id).outcome is RebuildOutcome.SAME


def test_newer_schema_stops_the_role_before_its_offset(engine: sa.Engine, log: JobLog) -> None:
    newer = [("kind", b"outcomes"), ("schema", b"99")]
    log.producer.send(RESULTS.name, b"", partition=0, headers=newer)
    log.producer.flush(40)

    with running(engine, log.kafka) as role:
        role.thread.join(DEADLINE_S)

    assert isinstance(role.failure, SchemaTooNewError)
    assert log.lag == 1


def test_rebalances_and_kills_change_no_rows(engine: sa.Engine, log: JobLog) -> None:
    job_ids = [add_running_job(engine, 200) for _ in range(8)]

    def send_all() -> None:
        for start in range(0, 200, 5):
            for job_id in job_ids:
                log.send_items(job_id, range(start, start + 5))

    sending = threading.Thread(target=send_all)
    sending.start()
    with running(engine, log.kafka, group_items_max=20):
        for _ in range(3):
            with running(engine, log.kafka, group_items_max=20) as guest:
                until(lambda g=guest: g.consumer.assigned)  # type: ignore[misc]
        sending.join()
        until(lambda: all(job(engine, job_id)["settled_at"] for job_id in job_ids))

    for job_id in job_ids:
        assert_totals_agree(engine, job_id)


def test_writer_waits_for_an_unavailable_database(engine: sa.Engine, log: JobLog) -> None:
    """A lock longer than the lock timeout simulates it."""
    job_id = add_running_job(engine, 10)
    log.send_items(job_id, range(5))

    @sa.event.listens_for(engine, "connect")
    def set_lock_timeout(connection: object, _record: object) -> None:
        connection.execute("SET lock_timeout = '100ms'")  # type: ignore[attr-defined]
        connection.commit()  # type: ignore[attr-defined]

    engine.dispose()
    retries = DATABASE_RETRIES._value.get()
    with engine.begin() as locking:
        locking.execute(sa.text("LOCK TABLE job_counters"))
        with running(engine, log.kafka):
            log.send_items(job_id, range(5, 10))
            until(lambda: DATABASE_RETRIES._value.get() >= retries + 3)
            locking.rollback()
            until(lambda: log.lag == 0)

    assert job(engine, job_id)["settled_at"]
    assert_totals_agree(engine, job_id)


def test_writer_ends_without_commit_when_the_database_stays_unavailable(log: JobLog) -> None:
    job_id = add_running_job(log.engine, 10)
    log.send_items(job_id, range(5))
    nowhere = new_engine("postgresql://127.0.0.1:1/none")

    with running(nowhere, log.kafka, database_wait_s=0.5) as role:
        role.thread.join(DEADLINE_S)

    assert isinstance(role.failure, DATABASE_UNAVAILABLE)
    assert log.lag == 1
