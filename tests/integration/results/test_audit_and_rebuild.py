"""Goal: audits and rebuilds find every difference of rows and log, which a rebuild can fix."""

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from core.ids import JOB, public_id
from core.object_names import answer_prefix
from core.outcomes import Outcome
from core.states import CloseReason
from jobs.tables.jobs import job_counters, jobs
from results.audit.audit_report import compare_items
from results.audit.job_log import PartitionLog
from results.rebuilding.log_replay import LogReplay
from results.rebuilding.rebuild import RebuildOutcome
from results.rebuilding.shadow_tables import SCHEMA, RebuildRunsError, shadow_engine
from results.retention.deletion import make_tombstone
from storage.postgres.items import items, job_slices
from storage.postgres.settings import DatabaseSettings
from tenancy.audit_reading import read_entries
from tenancy.installation_log import INSTALLATION
from tenancy.tables import usage_ledger
from tests.integration.results.job_log import (
    AGAIN,
    TOTAL,
    UNCOUNTED,
    JobLog,
    outcomes_by_job,
    outcomes_of,
)
from tests.integration.results.outcomes import (
    add_running_job,
    assert_totals_agree,
    counters,
    execute,
    failed,
    item_table,
    job,
    ledger,
    outcome,
    scalars,
)
from tests.integration.results.test_copied_results import add_copies, assert_complete, deduplicating
from tests.integration.results.test_provenance import assert_counts_are_exact
from topics.clients.admin import TopicAdmin
from topics.clients.producer import RecordProducer
from topics.records.catalogue import DEAD_LETTERS, RESULTS
from topics.records.records import CopiesDue, JobClose


def falsify(engine: sa.Engine, job_id: UUID) -> None:
    """Delete the rows of items 3 and 40, and change that of item 7."""
    mine = items.c.job_id == job_id
    forged = sa.update(items).where(mine, items.c.item_index == 7)
    execute(
        engine,
        sa.delete(items).where(mine, items.c.item_index.in_([3, 40])),
        forged.values(body=b"forged", output_tokens=500),
    )


def test_audit_reports_only_changed_rows(engine: sa.Engine, log: JobLog) -> None:
    job_id = log.write_every_outcome()

    rows, read = log.tally(job_id)

    assert read.is_complete
    assert not compare_items(rows, read.tally).is_any
    counted = counters(engine, job_id)
    names = [*(kind.label for kind in Outcome), "input_tokens"]
    assert {n: counted[n] for n in names} == {n: getattr(read.tally.totals, n) for n in names}
    assert read.tally.totals.billed == ledger(engine, job_id)["item_count"]
    counts = read.tally.counts
    assert (counts.retries, counts.unknown, counts.after_close) == (3, 1, 2)

    falsify(engine, job_id)
    rows, read = log.tally(job_id)
    found = compare_items(rows, read.tally)
    assert (found.row_missing, found.row_differs, found.result_missing) == ([3, 40], [7], [])

    _, read = log.tally(job_id, wait_s=0)
    assert (read.was_in_time, read.is_complete) == (False, False)


def test_audit_ignores_records_not_yet_written(engine: sa.Engine, log: JobLog) -> None:
    job_id = add_running_job(engine, TOTAL)
    log.write(job_id, outcomes_of(job_id, outcome(1), outcome(2)))
    log.send_items(job_id, range(3, 4))

    rows, read = log.tally(job_id)
    found = compare_items(rows, read.tally)

    assert (found.is_any, found.not_written_yet) == (False, 1)


def end_and_delete(engine: sa.Engine, job_id: UUID) -> None:
    """The state after the end of the job and the first step of a deletion."""
    its = jobs.c.id == job_id
    with engine.begin() as connection:
        ended = {"state": "completed", "completed_at": sa.func.now()}
        connection.execute(sa.update(jobs).where(its).values(ended))
        row = connection.execute(sa.select(jobs).where(its)).one()
        make_tombstone(connection, row, key_id=None)


def test_rebuild_swaps_differing_rows_only_with_apply(engine: sa.Engine, log: JobLog) -> None:
    job_id, other_id = log.write_every_outcome(), log.write_every_outcome()
    right, other = log.state(job_id), log.state(other_id)
    falsify(engine, job_id)
    its = job_counters.c.job_id == job_id
    names = ("item_count", *(column.name for column in usage_ledger.c if "_tokens" in column.name))
    bill = dict.fromkeys(names, 7) | {"model": "m", "model_version": "1"}
    execute(
        engine,
        sa.update(job_counters).where(its).values(failed=0, input_tokens=1),
        usage_ledger.insert().values(tenant_id=job_id, job_id=job_id, **bill),
        sa.delete(job_slices).where(job_slices.c.job_id == job_id),
    )
    broken = log.state(job_id)

    compared = log.rebuild(job_id)
    assert log.state(job_id) == broken
    everything = log.rebuild_all(apply=True)

    assert compared.outcome is RebuildOutcome.DIFFERS
    found = compared.found
    assert found is not None
    assert (found.missing, found.extra, found.different) == (2, 0, 1)
    agree = (found.counters_agree, found.usage_agrees, found.is_order_complete)
    assert agree == (False, False, False)
    assert not found.provenance_agrees  # the counts are those of the rows before
    assert everything[job_id].outcome is RebuildOutcome.SWAPPED
    assert everything[other_id].outcome is RebuildOutcome.SAME
    same = everything[other_id].found
    assert same is not None
    assert same.live_digest == same.shadow_digest
    assert log.state(other_id) == other
    schema = sa.text(f"SELECT FROM pg_namespace WHERE nspname = '{SCHEMA}'")
    with engine.connect() as connection:
        assert not connection.execute(schema).all()
        operations, _ = read_entries(connection, INSTALLATION, after=None, limit=9) or ([], False)
    rebuilt = [row.subject for row in operations if row.action == "job.rebuilt"]
    assert rebuilt == [public_id(JOB, job_id)]
    assert_totals_agree(engine, job_id)
    assert_counts_are_exact(engine, job_id)
    rows, counted, billed, slices, _ = log.state(job_id)
    rows_before, counted_before, billed_before, slices_before, _ = right
    moment = [column.name for column in items.c].index("finished_at")
    kept = [(*row[:moment], *row[moment + 1 :]) for row in rows]
    assert kept == [(*row[:moment], *row[moment + 1 :]) for row in rows_before]
    assert [row[moment] for row in rows if row[2] == 9] == [
        row[moment] for row in rows_before if row[2] == 9
    ]
    assert counted | UNCOUNTED == counted_before | UNCOUNTED
    assert billed == billed_before
    assert sum(len(one.item_indexes) for one in slices) == TOTAL
    assert len(slices_before) > 0
    assert log.rebuild(job_id).outcome is RebuildOutcome.SAME


def test_rebuild_skips_a_job_deleted_meanwhile(
    engine: sa.Engine, log: JobLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, kept = log.write_every_outcome(), log.write_every_outcome()
    run = LogReplay.run

    def deleting(self: LogReplay, *given: Any) -> Mapping[UUID, int]:
        if job(engine, gone)["deleted_at"] is None:
            end_and_delete(engine, gone)
        return run(self, *given)

    monkeypatch.setattr(LogReplay, "run", deleting)

    assert outcomes_by_job(log.rebuild_all(apply=True)) == {
        gone: RebuildOutcome.GONE,
        kept: RebuildOutcome.SAME,
    }


def test_rebuild_refuses_a_job_with_an_incomplete_log(
    engine: sa.Engine, log: JobLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = log.write_every_outcome()
    running_id = add_running_job(engine, 3)
    assert log.rebuild(running_id, apply=True).outcome is RebuildOutcome.NOT_ENDED

    partition = LogReplay.partition

    def begins_now(self: LogReplay, number: int) -> PartitionLog:
        return replace(partition(self, number), begins_s=time.time() + 60)

    monkeypatch.setattr(LogReplay, "partition", begins_now)
    refused = log.rebuild(job_id, apply=True)
    assert (refused.outcome, refused.found) == (RebuildOutcome.LOG_BEGINS_LATER, None)

    def lacks_the_end(self: LogReplay, number: int) -> PartitionLog:
        log = partition(self, number)
        return replace(log, offset_range=replace(log.offset_range, end=log.offset_range.end - 4))

    monkeypatch.setattr(LogReplay, "partition", lacks_the_end)
    execute(engine, sa.delete(items).where(items.c.job_id == job_id))
    assert log.rebuild(job_id, apply=True).outcome is RebuildOutcome.LOG_INCOMPLETE
    assert item_table(engine, job_id) == []


def test_rebuild_refuses_a_log_created_after_the_job(engine: sa.Engine, log: JobLog) -> None:
    """The new topic begins at 0, like one that never lost a record, and contains only the close."""
    job_id = add_running_job(engine, TOTAL)
    log.write(job_id, outcomes_of(job_id, *map(outcome, range(30))))
    before = items.c.finished_at - sa.text("interval '1 minute'")
    execute(engine, sa.update(items).values(finished_at=before))
    kafka = log.kafka.model_copy(update={"topic_prefix": f"{log.kafka.topic_prefix}again."})
    TopicAdmin(kafka).create([RESULTS, DEAD_LETTERS])
    with closing(RecordProducer(kafka, client_id="test")) as producer:
        again = replace(log, kafka=kafka, producer=producer)
        again.write(job_id, JobClose(job_id, 0, CloseReason.CANCELLED))
    books = log.state(job_id)

    refused = again.rebuild(job_id, apply=True)
    _, read = again.tally(job_id)

    assert refused.outcome is RebuildOutcome.LOG_BEGINS_LATER
    assert not read.has_first_record
    assert log.state(job_id) == books
    assert counters(engine, job_id)["succeeded"] == 30


def test_one_rebuild_runs_at_a_time_also_after_a_crash(
    engine: sa.Engine, database: DatabaseSettings
) -> None:
    execute(
        engine, sa.text(f"CREATE SCHEMA {SCHEMA}"), sa.text(f"CREATE TABLE {SCHEMA}.items (a int)")
    )
    with shadow_engine(database, engine) as shadow:
        with pytest.raises(RebuildRunsError), shadow_engine(database, engine):
            pass
        assert scalars(shadow, sa.text("SELECT count(*) FROM jobs")) == [0]
        assert scalars(shadow, sa.text("SHOW search_path")) == [SCHEMA]
    with shadow_engine(database, engine):
        pass


ORIGINALS = 12
COPIES = {n: n % ORIGINALS for n in range(ORIGINALS, 40)}
APPENDED = {n: n % ORIGINALS for n in range(40, TOTAL)}


def write_job_with_copies(engine: sa.Engine, log: JobLog) -> UUID:
    """Two files, duplicates, a retry, failures, a cancellation, and a restarted writer."""
    job_id = deduplicating(engine, 40, COPIES, sealed=False, total_final=False)
    of_job = partial(outcomes_of, job_id)
    in_an_object = outcome(5, body_key=answer_prefix(job_id) + "5", body=b"")
    log.write(
        job_id,
        of_job(outcome(0), outcome(1), failed(2), failed(3, **AGAIN), outcome(0)),
        of_job(outcome(1, body=b"other"), outcome(4, custom_id="a\0b"), in_an_object),
    )
    # As the verdict on an appended file does.
    execute(engine, sa.update(jobs).values(total_count=TOTAL, total_final=True, sealed=True))
    add_copies(engine, job_id, APPENDED)
    log.write(
        job_id,
        of_job(outcome(6)),
        CopiesDue(job_id, 40, TOTAL),
        of_job(outcome(3, attempt=2), outcome(2)),
        JobClose(job_id, 0, CloseReason.CANCELLED),
        of_job(outcome(7)),
    )
    assert job(engine, job_id)["settled_at"] is not None
    return job_id


def test_audit_and_rebuild_agree_with_the_writer_on_copies(engine: sa.Engine, log: JobLog) -> None:
    job_id = write_job_with_copies(engine, log)
    ended = {n for n in range(TOTAL) if n % ORIGINALS <= 6}
    rows = item_table(engine, job_id)
    kinds = {row.item_index for row in rows if row.outcome is not Outcome.CANCELLED.value}
    assert kinds == ended
    assert_complete(engine, job_id, copied=len(ended) - 7)

    facts, read = log.tally(job_id)
    assert read.is_complete
    assert not compare_items(facts, read.tally).is_any
    assert read.tally.totals.copied == counters(engine, job_id)["copied"]
    assert read.tally.totals.input_tokens == counters(engine, job_id)["input_tokens"]

    before = log.state(job_id)
    assert log.rebuild(job_id, apply=True).outcome is RebuildOutcome.SAME
    assert log.state(job_id) == before

    mine = items.c.job_id == job_id
    forged = sa.update(items).where(mine, items.c.item_index == 13)
    execute(
        engine,
        forged.values(copied_from=None, input_tokens=3, body=b'"forged"'),
        sa.delete(items).where(mine, items.c.item_index == 24),
    )
    facts, read = log.tally(job_id)
    found = compare_items(facts, read.tally)
    assert (found.row_differs, found.row_missing) == ([13], [24])
    assert log.rebuild(job_id, apply=True).outcome is RebuildOutcome.SWAPPED
    assert_totals_agree(engine, job_id)
    assert log.rebuild(job_id).outcome is RebuildOutcome.SAME
