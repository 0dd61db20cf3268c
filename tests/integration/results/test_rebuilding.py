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
from storage.postgres.settings import DatabaseSettings
from tests.integration.results.outcomes import assert_totals_agree, counters, item_table
from tests.integration.results.test_audit_and_rebuild import (
    end_and_delete,
    rebuilt,
    state_of,
    write_job_with_every_outcome,
)
from tests.integration.results.test_failure_handling import attempts, dead
from topics.clients.producer import RecordProducer
from topics.settings import KafkaSettings

FAILED = 3  # items of the job: an invalid request, three attempts, an unstorable result


def rows_of(engine: sa.Engine, table: sa.Table, job_id: UUID) -> list[dict[str, Any]]:
    query = sa.select(table).where(table.c.job_id == job_id).order_by(table.c.item_index)
    with engine.connect() as connection:
        return [dict(row) for row in connection.execute(query).mappings()]


def delete_rows(engine: sa.Engine, table: sa.Table, *where: sa.ColumnElement[bool]) -> None:
    with engine.begin() as connection:
        connection.execute(sa.delete(table).where(*where))


@pytest.mark.parametrize(("attempts_max", "above", "below"), [(1, 3, 0), (2, 1, 0), (5, 0, 1)])
def test_job_with_another_attempt_limit_is_not_swapped(
    engine: sa.Engine,
    kafka: KafkaSettings,
    producer: RecordProducer,
    database: DatabaseSettings,
    attempts_max: int,
    above: int,
    below: int,
) -> None:
    """A success on the second attempt, a failure on the third, then a close."""
    job_id = write_job_with_every_outcome(engine, kafka, producer)
    before = state_of(engine, job_id)

    (refused,) = rebuilt(engine, kafka, database, [job_id], apply=True, attempts_max=attempts_max)

    assert refused.outcome is RebuildOutcome.OTHER_LIMIT
    assert refused.found is not None
    assert (refused.found.above_limit, refused.found.below_limit) == (above, below)
    assert state_of(engine, job_id) == before


def test_other_attempt_limit_is_found_despite_lost_rows(
    engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer, database: DatabaseSettings
) -> None:
    job_id = write_job_with_every_outcome(engine, kafka, producer)
    delete_rows(engine, items, items.c.job_id == job_id)

    (refused,) = rebuilt(engine, kafka, database, [job_id], apply=True, attempts_max=1)

    assert refused.outcome is RebuildOutcome.OTHER_LIMIT
    assert item_table(engine, job_id) == []


def test_lost_counters_are_restored(
    engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer, database: DatabaseSettings
) -> None:
    job_ids = {write_job_with_every_outcome(engine, kafka, producer) for _ in range(2)}
    before = {job_id: state_of(engine, job_id) for job_id in job_ids}
    delete_rows(engine, job_counters)

    compared = rebuilt(engine, kafka, database, None)
    with engine.connect() as connection:
        assert connection.execute(sa.select(job_counters)).all() == []
    swapped = rebuilt(engine, kafka, database, None, apply=True)
    again = rebuilt(engine, kafka, database, None)

    assert {one.job_id: one.outcome for one in compared} == dict.fromkeys(
        job_ids, RebuildOutcome.DIFFERS
    )
    assert {one.found and one.found.counters_agree for one in compared} == {False}
    assert {one.job_id: one.outcome for one in swapped} == dict.fromkeys(
        job_ids, RebuildOutcome.SWAPPED
    )
    assert {one.job_id: one.outcome for one in again} == dict.fromkeys(job_ids, RebuildOutcome.SAME)
    for job_id, (rows, counted, *others) in before.items():
        rows_now, counted_now, *others_now = state_of(engine, job_id)
        assert (rows_now, others_now) == (rows, others)
        assert counted["closed_reason"] == "cancelled"
        assert counted_now | {"updated_at": 0} == counted | {"updated_at": 0}
        assert_totals_agree(engine, job_id)


def test_lost_dead_letters_and_attempts_are_restored(
    engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer, database: DatabaseSettings
) -> None:
    job_id, other_id = (write_job_with_every_outcome(engine, kafka, producer) for _ in range(2))
    letters, tried = rows_of(engine, dead_items, job_id), attempts(engine, job_id)
    assert len(letters) == FAILED
    delete_rows(engine, dead_items, dead_items.c.job_id == job_id)
    delete_rows(engine, item_attempts, item_attempts.c.job_id == job_id)

    (compared,) = rebuilt(engine, kafka, database, [job_id])
    assert dead(engine, job_id) == []
    swapped = {
        one.job_id: one.outcome for one in rebuilt(engine, kafka, database, None, apply=True)
    }
    (again,) = rebuilt(engine, kafka, database, [job_id])

    assert compared.outcome is RebuildOutcome.DIFFERS
    assert compared.found is not None
    assert compared.found.letters_missing == FAILED
    assert compared.found.attempts_missing >= 2  # how the log is cut decides on that of item 31
    assert swapped == {job_id: RebuildOutcome.SWAPPED, other_id: RebuildOutcome.SAME}
    assert again.outcome is RebuildOutcome.SAME
    assert rows_of(engine, dead_items, job_id) == letters
    its_own = [one for one in tried if one[0] == 32]
    assert [one for one in attempts(engine, job_id) if one[0] == 32] == its_own
    assert [attempt for _, attempt, *_ in its_own] == [1, 2, 3]
    ended = {row.item_index: row.finished_at for row in item_table(engine, job_id)}
    for one in rows_of(engine, item_attempts, job_id):
        assert one["failed_at"] <= ended[one["item_index"]]


def test_existing_dead_letter_keeps_its_redrive(
    engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer, database: DatabaseSettings
) -> None:
    job_id, redrive_id = write_job_with_every_outcome(engine, kafka, producer), new_uuid()
    with engine.begin() as connection:
        connection.execute(sa.update(dead_items).values(redriven_job_id=redrive_id))
    delete_rows(engine, dead_items, dead_items.c.item_index == 30)

    (swapped,) = rebuilt(engine, kafka, database, [job_id], apply=True)

    assert swapped.outcome is RebuildOutcome.SWAPPED
    assert swapped.found is not None
    assert swapped.found.letters_missing == 1
    taken = {
        one["item_index"]: one["redriven_job_id"] for one in rows_of(engine, dead_items, job_id)
    }
    assert taken == {30: None, 32: redrive_id, 33: redrive_id}


def test_job_deleted_before_the_swap_is_not_restored(
    engine: sa.Engine,
    kafka: KafkaSettings,
    producer: RecordProducer,
    database: DatabaseSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job_id = write_job_with_every_outcome(engine, kafka, producer)
    delete_rows(engine, items, items.c.job_id == job_id, items.c.item_index < 10)

    def deleted_first(*given: Any) -> RebuildOutcome:
        end_and_delete(engine, job_id)
        delete_rows(engine, dead_items)
        return swap(*given)

    monkeypatch.setattr(rebuilding, "swap", deleted_first)
    (gone,) = rebuilt(engine, kafka, database, [job_id], apply=True)

    assert gone.outcome is RebuildOutcome.GONE
    assert dead(engine, job_id) == []
    assert len(item_table(engine, job_id)) == 50
    with engine.connect() as connection:
        assert connection.execute(sa.select(job_counters)).all() == []


def test_counters_lost_before_the_swap_are_restored(
    engine: sa.Engine,
    kafka: KafkaSettings,
    producer: RecordProducer,
    database: DatabaseSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job_id = write_job_with_every_outcome(engine, kafka, producer)
    succeeded = counters(engine, job_id)["succeeded"]
    delete_rows(engine, items, items.c.job_id == job_id, items.c.item_index < 10)

    def lost_first(*given: Any) -> RebuildOutcome:
        delete_rows(engine, job_counters)
        return swap(*given)

    monkeypatch.setattr(rebuilding, "swap", lost_first)
    (swapped,) = rebuilt(engine, kafka, database, [job_id], apply=True)

    assert swapped.outcome is RebuildOutcome.SWAPPED
    assert counters(engine, job_id)["succeeded"] == succeeded
    assert_totals_agree(engine, job_id)
