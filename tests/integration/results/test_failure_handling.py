"""Goal: a redelivered failure schedules one retry; the last failure makes a dead letter."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from core.outcomes import Outcome
from core.states import CloseReason
from jobs.recovery.retry_policy import RetryRules
from jobs.tables.jobs import jobs
from jobs.tables.retries import dead_items, item_attempts, item_retries
from results.writer.day_partitions import DayPartitions
from results.writer.failure_handling import FailureHandler
from results.writer.item_writer import ItemWriter
from tests.integration.jobs.rows import outbox_records
from tests.integration.results.outcomes import (
    add_running_job,
    assert_totals_agree,
    close,
    counters,
    days_ago,
    execute,
    failed,
    fetch,
    item_table,
    job,
    outcome,
)
from topics.records.catalogue import DEAD_LETTERS
from topics.records.dead_items import DeadItems
from topics.records.records import ItemOutcome

RULES = RetryRules(attempts_max=3, backoff_s=100, backoff_s_max=150)
BROKEN = b'{"error":{"message":"no","type":"server_error","param":null,"code":"broken"}}'


@pytest.fixture
def writer(engine: sa.Engine) -> ItemWriter:
    return ItemWriter(engine, DayPartitions(engine), retries=RULES, fraction=lambda: 0.5)


def broken(index: int, attempt: int, **fields: Any) -> ItemOutcome:
    given: dict[str, Any] = {"status_code": 500, "body": BROKEN, "offset": 10 * index}
    return failed(index, **(given | {"retryable": True, "attempt": attempt} | fields))


def recorded(engine: sa.Engine, job_id: UUID, table: sa.Table, *columns: str) -> list[Any]:
    """Columns of the rows of a job, in the order of item and attempt."""
    query = sa.select(*[table.c[name] for name in columns]).where(table.c.job_id == job_id)
    order = (table.c.item_index, table.c.attempt)
    return [tuple(row) for row in fetch(engine, query.order_by(*order))]


def attempts(engine: sa.Engine, job_id: UUID) -> list[tuple[int, int, int, str]]:
    names = ("item_index", "attempt", "status_code", "code")
    return recorded(engine, job_id, item_attempts, *names)


def retries(engine: sa.Engine, job_id: UUID) -> list[tuple[int, int]]:
    """Index and attempt of scheduled retries."""
    return recorded(engine, job_id, item_retries, "item_index", "attempt")


def waits_s(engine: sa.Engine, job_id: UUID) -> list[float]:
    """How long each scheduled retry still waits."""
    wait_s = sa.extract("epoch", item_retries.c.due_at - sa.func.now())
    query = sa.select(wait_s).where(item_retries.c.job_id == job_id)
    return [float(row[0]) for row in fetch(engine, query.order_by(item_retries.c.attempt))]


def dead(engine: sa.Engine, job_id: UUID) -> list[tuple[int, int, int | None]]:
    return recorded(engine, job_id, dead_items, "item_index", "attempt", "line_offset")


def letters(engine: sa.Engine) -> list[DeadItems]:
    with engine.connect() as connection:
        return outbox_records(connection, DEAD_LETTERS, DeadItems)


def test_item_that_succeeds_after_two_failures_has_one_row(
    engine: sa.Engine, writer: ItemWriter
) -> None:
    job_id = add_running_job(engine, 2)

    writer.write({job_id: [outcome(0), broken(1, 1)]})
    offsets = recorded(engine, job_id, item_retries, "item_index", "attempt", "line_offset")
    assert offsets == [(1, 2, 10)]
    assert 48 < waits_s(engine, job_id)[0] <= 50
    writer.write({job_id: [broken(1, 2, status_code=408, body=b"", error_code="slow")]})
    assert retries(engine, job_id) == [(1, 2), (1, 3)]
    assert 73 < waits_s(engine, job_id)[1] <= 75
    assert counters(engine, job_id)["failed"] == 0
    assert job(engine, job_id)["settled_at"] is None
    writer.write({job_id: [outcome(1, attempt=3)]})

    row = item_table(engine, job_id)[1]
    assert (row.outcome, row.attempt) == (Outcome.SUCCEEDED, 3)
    assert attempts(engine, job_id) == [(1, 1, 500, "broken"), (1, 2, 408, "slow")]
    assert dead(engine, job_id) == []
    assert letters(engine) == []
    assert job(engine, job_id)["state"] == "finalizing"
    assert_totals_agree(engine, job_id)


def test_dead_letter_has_all_attempts(engine: sa.Engine, writer: ItemWriter) -> None:
    job_id = add_running_job(engine, 2)

    writer.write({job_id: [broken(1, 1, status_code=408, body=b"not json")]})
    writer.write({job_id: [broken(1, 2, body=b'{"error":{"code":"bad word!"}}')]})
    writer.write({job_id: [broken(1, 3)]})

    (row,) = item_table(engine, job_id)
    assert (row.item_index, row.outcome, row.status_code) == (1, Outcome.FAILED, 500)
    assert (row.attempt, row.body) == (3, BROKEN)
    assert dead(engine, job_id) == [(1, 3, 10)]
    (letter,) = letters(engine)
    assert (letter.job_id, letter.tenant_id) == (job_id, job(engine, job_id)["tenant_id"])
    (item,) = letter.items
    assert (item.index, item.custom_id) == (1, "request-1")
    assert [(a.attempt, a.status_code, a.code) for a in item.attempts] == [
        (1, 408, "http_408"),
        (2, 500, "http_500"),
        (3, 500, "broken"),
    ]
    assert item.attempts[0].at_s < item.attempts[2].at_s
    writer.write({job_id: [outcome(0)]})
    assert_totals_agree(engine, job_id)


def test_groups_without_failures_skip_the_failure_handler(
    engine: sa.Engine, writer: ItemWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_if_called(*_: object) -> None:
        pytest.fail("a group without failures reached the failure handler")

    monkeypatch.setattr(FailureHandler, "handle", fail_if_called)
    monkeypatch.setattr("results.writer.item_writer.record_dead_letters", fail_if_called)
    job_id = add_running_job(engine, 4)
    writer.write({job_id: [outcome(0), outcome(1)]})
    writer.write({job_id: [outcome(1), outcome(2)]})  # with a duplicate
    writer.write({job_id: [outcome(3)]})
    assert counters(engine, job_id)["succeeded"] == 4


def test_redelivered_failure_changes_nothing(engine: sa.Engine, writer: ItemWriter) -> None:
    job_id = add_running_job(engine, 2)
    writer.write({job_id: [broken(0, 1), broken(0, 1)]})
    assert retries(engine, job_id) == [(0, 2)]

    writer.write({job_id: [broken(0, 1)]})
    execute(engine, sa.delete(item_retries))  # intake has put it on the log
    writer.write({job_id: [broken(0, 1), broken(1, 1)]})
    assert retries(engine, job_id) == [(1, 2)]

    for _ in range(2):
        writer.write({job_id: [broken(0, 3)]})
    assert dead(engine, job_id) == [(0, 3, 0)]
    assert len(letters(engine)) == 1
    assert counters(engine, job_id)["failed"] == 1


def test_success_wins_over_a_retryable_failure(engine: sa.Engine, writer: ItemWriter) -> None:
    job_id = add_running_job(engine, 2)

    writer.write({job_id: [broken(0, 1), outcome(0)]})
    writer.write({job_id: [broken(0, 1), broken(0, 3), broken(1, 1)]})
    writer.write({job_id: [outcome(1)]})

    assert [row.outcome for row in item_table(engine, job_id)] == [Outcome.SUCCEEDED] * 2
    assert attempts(engine, job_id) == [(1, 1, 500, "broken")]
    assert_totals_agree(engine, job_id)


def test_rows_do_not_depend_on_the_groups(engine: sa.Engine, writer: ItemWriter) -> None:
    """Each item has the same outcomes in another order; each job groups them differently."""
    makes: list[Callable[[int], ItemOutcome]] = [
        partial(broken, attempt=1),
        partial(broken, attempt=3, status_code=503),
        partial(broken, attempt=3),
        partial(failed, attempt=2),
        outcome,
    ]
    orders = list(itertools.permutations(makes))
    told = []
    for cut in itertools.product([False, True], repeat=len(makes) - 1):
        job_id = add_running_job(engine, len(orders))
        group: list[ItemOutcome] = []
        for place, is_last in enumerate([*cut, True]):
            group += [order[place](index) for index, order in enumerate(orders)]
            if is_last:
                writer.write({job_id: group})
                group = []
        rows = item_table(engine, job_id)
        told.append([(row.outcome, row.status_code, row.attempt) for row in rows])
        assert_totals_agree(engine, job_id)
    assert len(told[0]) == len(orders)
    assert all(rows == told[0] for rows in told)


def test_permanent_failure_is_a_dead_letter_at_once(engine: sa.Engine, writer: ItemWriter) -> None:
    job_id = add_running_job(engine, 300)
    unread = failed(299, status_code=0, body=b"", custom_id=None, error_code="record_unreadable")

    writer.write({job_id: [failed(i, offset=i) for i in range(299)] + [unread]})

    assert dead(engine, job_id)[:2] == [(0, 1, 0), (1, 1, 1)]
    assert dead(engine, job_id)[-1] == (299, 1, None)
    assert [len(letter.items) for letter in letters(engine)] == [250, 50]
    last = letters(engine)[1].items[-1]
    assert [(a.attempt, a.code) for a in last.attempts] == [(1, "record_unreadable")]
    assert attempts(engine, job_id) == []
    assert_totals_agree(engine, job_id)


def test_single_request_has_no_dead_letter(engine: sa.Engine, writer: ItemWriter) -> None:
    job_id = add_running_job(engine, 1, kind="request", input_file_id=None)

    writer.write({job_id: [failed(0)]})

    assert dead(engine, job_id) == []
    assert letters(engine) == []


def test_backoff_is_at_most_a_quarter_of_the_remaining_time(
    engine: sa.Engine, writer: ItemWriter
) -> None:
    soon = sa.text("now() + interval '40 s'")
    job_id, late = (add_running_job(engine, 1, expires_at=soon) for _ in range(2))
    execute(engine, sa.update(jobs).where(jobs.c.id == late).values(expires_at=days_ago(0.001)))

    writer.write({job_id: [broken(0, 1)], late: [broken(0, 1)]})

    assert 8 < waits_s(engine, job_id)[0] <= 10
    assert waits_s(engine, late)[0] <= 0


@pytest.mark.parametrize(
    ("reason", "outcome_"),
    [(CloseReason.CANCELLED, Outcome.CANCELLED), (CloseReason.EXPIRED, Outcome.EXPIRED)],
)
def test_close_drops_scheduled_retries(
    engine: sa.Engine, writer: ItemWriter, reason: CloseReason, outcome_: Outcome
) -> None:
    job_id = add_running_job(engine, 5, close_reason=reason.value)
    writer.write({job_id: [outcome(0), broken(1, 1), broken(4, 1)]})

    locked = sa.select(item_retries).where(item_retries.c.item_index == 4).with_for_update()
    with engine.begin() as connection:  # intake emits this one just now
        connection.execute(locked)
        assert close(engine, job_id, reason, slice_items=2)

    assert retries(engine, job_id) == [(4, 2)]
    assert [row.outcome for row in item_table(engine, job_id)][1:] == [outcome_] * 4
    writer.write({job_id: [broken(4, 2), broken(1, 2)]})
    assert retries(engine, job_id) == [(4, 2)]
    assert dead(engine, job_id) == []
    assert_totals_agree(engine, job_id)


@pytest.mark.parametrize("fields", [{"attempt": 40_000}, {"status_code": 1 << 40}, {"index": -1}])
def test_unstorable_failure_blocks_no_other(
    engine: sa.Engine, writer: ItemWriter, fields: dict[str, int]
) -> None:
    job_id = add_running_job(engine, 3)
    bad = broken(**({"index": 1, "attempt": 1} | fields))

    writer.write({job_id: [outcome(0), bad, broken(2, 1)]})

    assert retries(engine, job_id) == [(2, 2)]
    assert item_table(engine, job_id)[0].outcome is Outcome.SUCCEEDED.value
