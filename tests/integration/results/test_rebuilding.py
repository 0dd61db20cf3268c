"""Goal: a rebuild changes nothing decided by another attempt limit, and restores counters and dead
letters, but not those of deleted batches."""

from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from core.ids import new_uuid
from jobs.tables.jobs import job_counters
from jobs.tables.retries import dead_items, item_attempts
from results.rebuilding import rebuild as rebuilding
from results.rebuilding.rebuild import RebuildOutcome, swap
from storage.postgres.items import items
from tests.integration.results.job_log import UNCOUNTED, JobLog, outcomes_by_job
from tests.integration.results.outcomes import (
    assert_totals_agree,
    count,
    counters,
    execute,
    fetch,
    item_table,
)
from tests.integration.results.test_audit_and_rebuild import end_and_delete
from tests.integration.results.test_failure_handling import attempts, dead

FAILED = 3  # items of the job: an invalid request, three attempts, an unstorable result


def rows_of(engine: sa.Engine, table: sa.Table, job_id: UUID) -> list[dict[str, Any]]:
    query = sa.select(table).where(table.c.job_id == job_id).order_by(table.c.item_index)
    return [dict(row._mapping) for row in fetch(engine, query)]


def delete_rows(engine: sa.Engine, table: sa.Table, *where: sa.ColumnElement[bool]) -> None:
    execute(engine, sa.delete(table).where(*where))


def test_job_with_another_attempt_limit_is_not_swapped(engine: sa.Engine, log: JobLog) -> None:
    """A success on the second attempt, a failure on the third, then a close."""
    job_id = log.write_every_outcome()
    before = log.state(job_id)

    for attempts_max, above, below in [(1, 3, 0), (2, 1, 0), (5, 0, 1)]:
        refused = log.rebuild(job_id, apply=True, attempts_max=attempts_max)
        assert refused.outcome is RebuildOutcome.OTHER_LIMIT
        assert refused.found is not None
        assert (refused.found.above_limit, refused.found.below_limit) == (above, below)
    assert log.state(job_id) == before

    delete_rows(engine, items, items.c.job_id == job_id)  # found despite lost rows
    refused = log.rebuild(job_id, apply=True, attempts_max=1)
    assert refused.outcome is RebuildOutcome.OTHER_LIMIT
    assert item_table(engine, job_id) == []


def test_lost_counters_are_restored(engine: sa.Engine, log: JobLog) -> None:
    job_ids = {log.write_every_outcome() for _ in range(2)}
    before = {job_id: log.state(job_id) for job_id in job_ids}
    delete_rows(engine, job_counters)

    compared = log.rebuild_all()
    assert count(engine, job_counters) == 0
    swapped = log.rebuild_all(apply=True)
    again = log.rebuild_all()

    assert outcomes_by_job(compared) == dict.fromkeys(job_ids, RebuildOutcome.DIFFERS)
    assert {one.found and one.found.counters_agree for one in compared.values()} == {False}
    assert outcomes_by_job(swapped) == dict.fromkeys(job_ids, RebuildOutcome.SWAPPED)
    assert outcomes_by_job(again) == dict.fromkeys(job_ids, RebuildOutcome.SAME)
    for job_id, (rows, counted, *others) in before.items():
        rows_now, counted_now, *others_now = log.state(job_id)
        assert (rows_now, others_now) == (rows, others)
        assert counted["closed_reason"] == "cancelled"
        assert counted_now | UNCOUNTED == counted | UNCOUNTED
        assert_totals_agree(engine, job_id)


def test_lost_dead_letters_and_attempts_are_restored(engine: sa.Engine, log: JobLog) -> None:
    job_id, other_id = log.write_every_outcome(), log.write_every_outcome()
    letters, tried = rows_of(engine, dead_items, job_id), attempts(engine, job_id)
    assert len(letters) == FAILED
    delete_rows(engine, dead_items, dead_items.c.job_id == job_id)
    delete_rows(engine, item_attempts, item_attempts.c.job_id == job_id)

    compared = log.rebuild(job_id)
    assert dead(engine, job_id) == []
    swapped = outcomes_by_job(log.rebuild_all(apply=True))

    assert compared.outcome is RebuildOutcome.DIFFERS
    assert compared.found is not None
    assert compared.found.letters_missing == FAILED
    assert compared.found.attempts_missing >= 2  # how the log is cut decides on that of item 31
    assert swapped == {job_id: RebuildOutcome.SWAPPED, other_id: RebuildOutcome.SAME}
    assert log.rebuild(job_id).outcome is RebuildOutcome.SAME
    assert rows_of(engine, dead_items, job_id) == letters
    its_own = [one for one in tried if one[0] == 32]
    assert [one for one in attempts(engine, job_id) if one[0] == 32] == its_own
    assert [attempt for _, attempt, *_ in its_own] == [1, 2, 3]
    ended = {row.item_index: row.finished_at for row in item_table(engine, job_id)}
    for one in rows_of(engine, item_attempts, job_id):
        assert one["failed_at"] <= ended[one["item_index"]]


def test_existing_dead_letter_keeps_its_redrive(engine: sa.Engine, log: JobLog) -> None:
    job_id, redrive_id = log.write_every_outcome(), new_uuid()
    execute(engine, sa.update(dead_items).values(redriven_job_id=redrive_id))
    delete_rows(engine, dead_items, dead_items.c.item_index == 30)

    swapped = log.rebuild(job_id, apply=True)

    assert swapped.outcome is RebuildOutcome.SWAPPED
    assert swapped.found is not None
    assert swapped.found.letters_missing == 1
    letters = rows_of(engine, dead_items, job_id)
    taken = {one["item_index"]: one["redriven_job_id"] for one in letters}
    assert taken == {30: None, 32: redrive_id, 33: redrive_id}


def test_swap_restores_lost_counters_but_no_deleted_job(
    engine: sa.Engine, log: JobLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are lost after the comparison and before the swap."""
    gone, kept = log.write_every_outcome(), log.write_every_outcome()
    succeeded = counters(engine, kept)["succeeded"]
    delete_rows(engine, items, items.c.item_index < 10)

    def deleted_first(*given: Any) -> RebuildOutcome:
        end_and_delete(engine, gone)
        delete_rows(engine, dead_items, dead_items.c.job_id == gone)
        return swap(*given)

    def lost_first(*given: Any) -> RebuildOutcome:
        delete_rows(engine, job_counters)
        return swap(*given)

    monkeypatch.setattr(rebuilding, "swap", deleted_first)
    assert log.rebuild(gone, apply=True).outcome is RebuildOutcome.GONE
    assert dead(engine, gone) == []
    assert len(item_table(engine, gone)) == 50
    assert count(engine, job_counters, job_counters.c.job_id == gone) == 0

    monkeypatch.setattr(rebuilding, "swap", lost_first)
    assert log.rebuild(kept, apply=True).outcome is RebuildOutcome.SWAPPED
    assert counters(engine, kept)["succeeded"] == succeeded
    assert_totals_agree(engine, kept)
