"""Goal: audits and rebuilds find every difference of rows and log, which a rebuild can fix."""

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from core.outcomes import Outcome
from core.states import CloseReason
from jobs.store.days import job_day
from jobs.tables.jobs import jobs
from results.audit.audit_report import compare_items
from results.audit.item_fingerprints import RowFingerprints
from results.audit.job_log import LogRead, PartitionLog, committed_offset, tally_log
from results.rebuilding.log_replay import LogReplay
from results.rebuilding.rebuild import RebuildOutcome, RebuiltJob, rebuild
from results.rebuilding.shadow_tables import SCHEMA, RebuildRunsError, shadow_engine
from results.retention.deletion import make_tombstone
from results.settings import WriterSettings
from storage.postgres.items import items, job_slices
from storage.postgres.settings import DatabaseSettings
from tests.integration.results.outcomes import (
    add_running_job,
    assert_totals_agree,
    counters,
    failed,
    item_table,
    job,
    job_ref,
    ledger,
    outcome,
)
from tests.integration.results.test_writer import lag, running, send
from tests.support.until import until
from topics.clients.admin import TopicAdmin
from topics.clients.producer import RecordProducer
from topics.records.catalogue import DEAD_LETTERS, RESULTS
from topics.records.records import ItemOutcome, JobClose, Outcomes
from topics.settings import KafkaSettings

TOTAL = 60
AGAIN = {"retryable": True, "status_code": 500, "input_tokens": 2}


def outcomes_of(job_id: UUID, *outcomes: ItemOutcome) -> Outcomes:
    return Outcomes(job_ref(job_id), list(outcomes))


def write_job_with_every_outcome(
    engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer
) -> UUID:
    """A job with every kind of outcome, written by a real writer."""
    job_id = add_running_job(engine, TOTAL)
    records: list[Outcomes | JobClose] = [
        outcomes_of(job_id, *[outcome(index) for index in range(20)]),
        outcomes_of(job_id, *[outcome(index, body=b"other") for index in range(10, 30)]),
        outcomes_of(job_id, failed(30), failed(31, **AGAIN), failed(32, **AGAIN)),
        outcomes_of(job_id, outcome(31, attempt=2), failed(32, attempt=2, **AGAIN)),
        outcomes_of(job_id, failed(32, attempt=3, **AGAIN), outcome(33, custom_id="a\0b")),
        outcomes_of(job_id, outcome(TOTAL + 5), outcome(34, body=b"", body_key="answers/34")),
        JobClose(job_id, 0, CloseReason.CANCELLED),
        outcomes_of(job_id, outcome(50)),
        JobClose(job_id, 0, CloseReason.EXPIRED),
    ]
    for record in records:
        send(producer, job_id, record)
    producer.flush(10)
    with running(engine, kafka):
        until(lambda: job(engine, job_id)["settled_at"] is not None)
        until(lambda: lag(kafka) == 0)
    return job_id


def tally(engine: sa.Engine, kafka: KafkaSettings, job_id: UUID) -> tuple[RowFingerprints, LogRead]:
    created_at = job(engine, job_id)["created_at"]
    written_to = committed_offset(kafka, job_id)
    rows = RowFingerprints(TOTAL)
    with engine.connect() as connection:
        rows.read(connection, (job_id, job_day(created_at)), range(TOTAL))
    stop_at_s = time.monotonic() + 20
    read = tally_log(kafka, (job_id, created_at), rows, written_to=written_to, stop_at_s=stop_at_s)
    return rows, read


def test_audit_finds_rows_and_log_equal(
    engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer
) -> None:
    job_id = write_job_with_every_outcome(engine, kafka, producer)

    rows, read = tally(engine, kafka, job_id)

    assert read.is_complete
    assert not compare_items(rows, read.tally).is_any
    counted = counters(engine, job_id)
    assert {kind.label: counted[kind.label] for kind in Outcome} == {
        kind.label: getattr(read.tally.totals, kind.label) for kind in Outcome
    }
    assert read.tally.totals.input_tokens == counted["input_tokens"]
    assert read.tally.totals.billed == ledger(engine, job_id)["item_count"]
    counts = read.tally.counts
    assert (counts.retries, counts.unknown, counts.after_close) == (3, 1, 2)


def test_audit_reports_changed_rows(
    engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer
) -> None:
    job_id = write_job_with_every_outcome(engine, kafka, producer)
    with engine.begin() as connection:
        mine = items.c.job_id == job_id
        connection.execute(sa.delete(items).where(mine, items.c.item_index.in_([3, 40])))
        one = sa.update(items).where(mine, items.c.item_index == 7)
        connection.execute(one.values(output_tokens=500))

    rows, read = tally(engine, kafka, job_id)
    found = compare_items(rows, read.tally)

    assert (found.row_missing, found.row_differs, found.result_missing) == ([3, 40], [7], [])


def test_audit_ignores_records_not_yet_written(
    engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer
) -> None:
    job_id = add_running_job(engine, TOTAL)
    send(producer, job_id, outcomes_of(job_id, outcome(1), outcome(2)))
    producer.flush(10)
    with running(engine, kafka):
        until(lambda: lag(kafka) == 0)
    send(producer, job_id, outcomes_of(job_id, outcome(3)))
    producer.flush(10)

    rows, read = tally(engine, kafka, job_id)
    found = compare_items(rows, read.tally)

    assert not found.is_any
    assert found.not_written_yet == 1


def test_audit_reports_a_timeout(
    engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer
) -> None:
    job_id = write_job_with_every_outcome(engine, kafka, producer)
    created_at = job(engine, job_id)["created_at"]

    read = tally_log(
        kafka,
        (job_id, created_at),
        RowFingerprints(TOTAL),
        written_to=0,
        stop_at_s=time.monotonic(),
    )

    assert not read.was_in_time
    assert not read.is_complete


def rebuilt(
    engine: sa.Engine,
    kafka: KafkaSettings,
    database: DatabaseSettings,
    job_ids: list[UUID] | None,
    *,
    apply: bool = False,
    attempts_max: int = 3,
) -> list[RebuiltJob]:
    replay = LogReplay(kafka, WriterSettings(attempts_max=attempts_max), timeout_s=30)
    with shadow_engine(database, engine) as shadow:
        return list(rebuild(engine, shadow, replay, job_ids, apply=apply))


def end_and_delete(engine: sa.Engine, job_id: UUID) -> None:
    """The state after the end of the job and the first step of a deletion."""
    its = jobs.c.id == job_id
    with engine.begin() as connection:
        ended = {"state": "completed", "completed_at": sa.func.now()}
        connection.execute(sa.update(jobs).where(its).values(ended))
        row = connection.execute(sa.select(jobs).where(its)).one()
        make_tombstone(connection, row, key_id=None)


def state_of(engine: sa.Engine, job_id: UUID) -> Any:
    order = sa.select(job_slices).where(job_slices.c.job_id == job_id)
    with engine.connect() as connection:
        slices = connection.execute(order.order_by(job_slices.c.first_sequence)).all()
    rows = [tuple(row) for row in item_table(engine, job_id)]
    counted = {**counters(engine, job_id)}
    return rows, counted, ledger(engine, job_id), slices, {**job(engine, job_id)}


def test_rebuild_of_an_unchanged_job_finds_no_difference(
    engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer, database: DatabaseSettings
) -> None:
    job_id = write_job_with_every_outcome(engine, kafka, producer)
    before = state_of(engine, job_id)

    (one,) = rebuilt(engine, kafka, database, [job_id], apply=True)

    assert one.outcome is RebuildOutcome.SAME
    assert one.found is not None
    assert one.found.live_digest == one.found.shadow_digest
    assert state_of(engine, job_id) == before
    with engine.connect() as connection:
        schema = sa.text("SELECT count(*) FROM pg_namespace WHERE nspname = :name")
        assert connection.scalar(schema, {"name": SCHEMA}) == 0


def test_rebuild_swaps_differing_rows_only_with_apply(
    engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer, database: DatabaseSettings
) -> None:
    job_id = write_job_with_every_outcome(engine, kafka, producer)
    other_id = write_job_with_every_outcome(engine, kafka, producer)
    right, other = state_of(engine, job_id), state_of(engine, other_id)
    with engine.begin() as connection:
        mine = items.c.job_id == job_id
        connection.execute(sa.delete(items).where(mine, items.c.item_index.in_([3, 40])))
        one = sa.update(items).where(mine, items.c.item_index == 7)
        connection.execute(one.values(body=b"forged", output_tokens=500))
        connection.execute(
            sa.text("UPDATE job_counters SET failed = 0, input_tokens = 1 WHERE job_id = :job"),
            {"job": job_id},
        )
        connection.execute(
            sa.text("INSERT INTO usage_ledger (tenant_id, job_id, model, model_version, item_count,"
                    " input_tokens, output_tokens, cached_tokens, reasoning_tokens)"
                    " VALUES (:job, :job, 'm', '1', 7, 7, 7, 7, 7)"),
            {"job": job_id},
        )  # fmt: skip
        connection.execute(sa.delete(job_slices).where(job_slices.c.job_id == job_id))
    broken = state_of(engine, job_id)

    (compared,) = rebuilt(engine, kafka, database, [job_id])
    assert state_of(engine, job_id) == broken
    everything = {one.job_id: one for one in rebuilt(engine, kafka, database, None, apply=True)}

    assert compared.outcome is RebuildOutcome.DIFFERS
    assert compared.found is not None
    found = compared.found
    assert (found.missing, found.extra, found.different) == (2, 0, 1)
    agree = (found.counters_agree, found.usage_agrees, found.is_order_complete)
    assert agree == (False, False, False)
    assert everything[job_id].outcome is RebuildOutcome.SWAPPED
    assert everything[other_id].outcome is RebuildOutcome.SAME
    assert state_of(engine, other_id) == other
    assert_totals_agree(engine, job_id)
    rows, counted, billed, slices, _ = state_of(engine, job_id)
    rows_before, counted_before, billed_before, slices_before, _ = right
    moment = [column.name for column in items.c].index("finished_at")
    kept = [(*row[:moment], *row[moment + 1 :]) for row in rows]
    assert kept == [(*row[:moment], *row[moment + 1 :]) for row in rows_before]
    assert [row[moment] for row in rows if row[2] == 9] == [
        row[moment] for row in rows_before if row[2] == 9
    ]
    assert counted | {"updated_at": 0} == counted_before | {"updated_at": 0}
    assert billed == billed_before
    assert sum(len(one.item_indexes) for one in slices) == TOTAL
    assert len(slices_before) > 0
    (again,) = rebuilt(engine, kafka, database, [job_id])
    assert again.outcome is RebuildOutcome.SAME


def test_rebuild_skips_a_job_deleted_meanwhile(
    engine: sa.Engine,
    kafka: KafkaSettings,
    producer: RecordProducer,
    database: DatabaseSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone, kept = (write_job_with_every_outcome(engine, kafka, producer) for _ in range(2))
    run = LogReplay.run

    def deleting(self: LogReplay, *given: Any) -> Mapping[UUID, int]:
        if job(engine, gone)["deleted_at"] is None:
            end_and_delete(engine, gone)
        return run(self, *given)

    monkeypatch.setattr(LogReplay, "run", deleting)
    found = {one.job_id: one.outcome for one in rebuilt(engine, kafka, database, None, apply=True)}

    assert found == {gone: RebuildOutcome.GONE, kept: RebuildOutcome.SAME}


def test_rebuild_refuses_a_job_with_an_incomplete_log(
    engine: sa.Engine,
    kafka: KafkaSettings,
    producer: RecordProducer,
    database: DatabaseSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job_id = write_job_with_every_outcome(engine, kafka, producer)
    running_id = add_running_job(engine, 3)
    before = state_of(engine, job_id)

    (running_one,) = rebuilt(engine, kafka, database, [running_id], apply=True)
    assert running_one.outcome is RebuildOutcome.NOT_ENDED

    partition = LogReplay.partition

    def begins_now(self: LogReplay, number: int) -> PartitionLog:
        return replace(partition(self, number), begins_s=time.time() + 60)

    monkeypatch.setattr(LogReplay, "partition", begins_now)
    (refused,) = rebuilt(engine, kafka, database, [job_id], apply=True)
    assert (refused.outcome, refused.found) == (RebuildOutcome.LOG_BEGINS_LATER, None)

    def lacks_the_end(self: LogReplay, number: int) -> PartitionLog:
        log = partition(self, number)
        return replace(log, offset_range=replace(log.offset_range, end=log.offset_range.end - 4))

    monkeypatch.setattr(LogReplay, "partition", lacks_the_end)
    with engine.begin() as connection:
        connection.execute(sa.delete(items).where(items.c.job_id == job_id))
    (cut,) = rebuilt(engine, kafka, database, [job_id], apply=True)
    assert cut.outcome is RebuildOutcome.LOG_INCOMPLETE
    assert item_table(engine, job_id) == []
    assert before != state_of(engine, job_id)


def test_rebuild_refuses_a_log_created_after_the_job(
    engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer, database: DatabaseSettings
) -> None:
    """The new topic begins at 0, like one that never lost a record, and contains only the close."""
    job_id = add_running_job(engine, TOTAL)
    send(producer, job_id, outcomes_of(job_id, *[outcome(index) for index in range(30)]))
    producer.flush(10)
    with running(engine, kafka):
        until(lambda: len(item_table(engine, job_id)) == 30)
    with engine.begin() as connection:
        before = items.c.finished_at - sa.text("interval '1 minute'")
        connection.execute(sa.update(items).values(finished_at=before))
    again = kafka.model_copy(update={"topic_prefix": f"{kafka.topic_prefix}again."})
    TopicAdmin(again).create([RESULTS, DEAD_LETTERS])
    with closing(RecordProducer(again, client_id="test")) as other:
        send(other, job_id, JobClose(job_id, 0, CloseReason.CANCELLED))
        other.flush(10)
    with running(engine, again):
        until(lambda: job(engine, job_id)["settled_at"] is not None)
    books = state_of(engine, job_id)

    (refused,) = rebuilt(engine, again, database, [job_id], apply=True)
    _, read = tally(engine, again, job_id)

    assert refused.outcome is RebuildOutcome.LOG_BEGINS_LATER
    assert not read.has_first_record
    assert state_of(engine, job_id) == books
    assert counters(engine, job_id)["succeeded"] == 30


def test_one_rebuild_runs_at_a_time_also_after_a_crash(
    engine: sa.Engine, database: DatabaseSettings
) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text(f"CREATE SCHEMA {SCHEMA}"))
        connection.execute(sa.text(f"CREATE TABLE {SCHEMA}.items (a int)"))
    with shadow_engine(database, engine) as shadow:
        with pytest.raises(RebuildRunsError), shadow_engine(database, engine):
            pass
        with shadow.begin() as connection:
            assert connection.scalar(sa.text("SELECT count(*) FROM jobs")) == 0
            assert connection.scalar(sa.text("SHOW search_path")) == SCHEMA
    with shadow_engine(database, engine):
        pass
