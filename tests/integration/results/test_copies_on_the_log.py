"""Goal: audits and rebuilds agree with the rows that a real writer wrote for copies."""

from functools import partial
from uuid import UUID

import sqlalchemy as sa

from core.object_names import answer_prefix
from core.outcomes import Outcome
from core.states import CloseReason
from jobs.tables.jobs import jobs
from results.audit.audit_report import compare_items
from results.rebuilding.rebuild import RebuildOutcome
from storage.postgres.items import items
from tests.integration.results.job_log import AGAIN, TOTAL, JobLog, outcomes_of
from tests.integration.results.outcomes import (
    assert_totals_agree,
    counters,
    execute,
    failed,
    item_table,
    job,
    outcome,
)
from tests.integration.results.test_copied_results import add_copies, assert_complete, deduplicating
from topics.records.records import CopiesDue, JobClose

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
