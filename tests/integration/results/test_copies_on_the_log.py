"""Goal: audits and rebuilds agree with the rows that a real writer wrote for copies."""

from uuid import UUID

import sqlalchemy as sa

from core.outcomes import Outcome
from core.states import CloseReason
from jobs.tables.jobs import jobs
from results.audit.audit_report import compare_items
from results.rebuilding.rebuild import RebuildOutcome
from storage.postgres.items import items
from storage.postgres.settings import DatabaseSettings
from tests.integration.results.outcomes import (
    assert_totals_agree,
    counters,
    failed,
    item_table,
    job,
    outcome,
)
from tests.integration.results.test_audit_and_rebuild import (
    TOTAL,
    outcomes_of,
    rebuilt,
    state_of,
    tally,
)
from tests.integration.results.test_copied_results import add_copies, assert_complete, deduplicating
from tests.integration.results.test_writer import lag, running, send
from tests.support.until import until
from topics.clients.producer import RecordProducer
from topics.records.records import CopiesDue, ItemOutcome, JobClose
from topics.settings import KafkaSettings

ORIGINALS = 12
COPIES = {n: n % ORIGINALS for n in range(ORIGINALS, 40)}
APPENDED = {n: n % ORIGINALS for n in range(40, TOTAL)}
AGAIN = {"retryable": True, "status_code": 500}


def write_job_with_copies(
    engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer
) -> UUID:
    """Two files, duplicates, a retry, failures, a cancellation, and a restarted writer."""
    job_id = deduplicating(engine, 40, COPIES, sealed=False, total_final=False)

    def send_outcomes(*outcomes: ItemOutcome) -> None:
        send(producer, job_id, outcomes_of(job_id, *outcomes))

    send_outcomes(outcome(0), outcome(1), failed(2), failed(3, **AGAIN), outcome(0))
    send_outcomes(
        outcome(1, body=b"other"), outcome(4, custom_id="a\0b"), outcome(5, body_key="k", body=b"")
    )
    producer.flush(10)
    with running(engine, kafka):
        until(lambda: lag(kafka) == 0)
    with engine.begin() as connection:  # as the verdict on an appended file does
        connection.execute(sa.update(jobs).values(total_count=TOTAL, total_final=True, sealed=True))
    add_copies(engine, job_id, APPENDED)
    send_outcomes(outcome(6))
    send(producer, job_id, CopiesDue(job_id, 40, TOTAL))
    send_outcomes(outcome(3, attempt=2), outcome(2))
    send(producer, job_id, JobClose(job_id, 0, CloseReason.CANCELLED))
    send_outcomes(outcome(7))
    producer.flush(10)
    with running(engine, kafka):
        until(lambda: lag(kafka) == 0)
    assert job(engine, job_id)["settled_at"] is not None
    return job_id


def test_audit_and_rebuild_agree_with_the_writer_on_copies(
    engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer, database: DatabaseSettings
) -> None:
    job_id = write_job_with_copies(engine, kafka, producer)
    ended = {n for n in range(TOTAL) if n % ORIGINALS <= 6}
    rows = item_table(engine, job_id)
    kinds = {row.item_index for row in rows if row.outcome is not Outcome.CANCELLED.value}
    assert kinds == ended
    assert_complete(engine, job_id, copied=len(ended) - 7)

    facts, read = tally(engine, kafka, job_id)
    assert read.is_complete
    assert not compare_items(facts, read.tally).is_any
    assert read.tally.totals.copied == counters(engine, job_id)["copied"]
    assert read.tally.totals.input_tokens == counters(engine, job_id)["input_tokens"]

    before = state_of(engine, job_id)
    (same,) = rebuilt(engine, kafka, database, [job_id], apply=True)
    assert same.outcome is RebuildOutcome.SAME
    assert state_of(engine, job_id) == before

    mine = items.c.job_id == job_id
    with engine.begin() as connection:
        forged = sa.update(items).where(mine, items.c.item_index == 13)
        connection.execute(forged.values(copied_from=None, input_tokens=3, body=b'"forged"'))
        connection.execute(sa.delete(items).where(mine, items.c.item_index == 24))
    facts, read = tally(engine, kafka, job_id)
    found = compare_items(facts, read.tally)
    assert (found.row_differs, found.row_missing) == ([13], [24])
    (swapped,) = rebuilt(engine, kafka, database, [job_id], apply=True)
    assert swapped.outcome is RebuildOutcome.SWAPPED
    assert_totals_agree(engine, job_id)
    (again,) = rebuilt(engine, kafka, database, [job_id])
    assert again.outcome is RebuildOutcome.SAME
