"""Goal: a job closes itself at its budget, and outcomes in flight still count."""

from uuid import UUID

import sqlalchemy as sa

from core.outcomes import Outcome
from core.states import CloseReason
from jobs.tables.outbox import outbox
from tests.integration.results.outcomes import (
    add_running_job,
    assert_totals_agree,
    close,
    counters,
    failed,
    fetch,
    item_table,
    job,
    outcome,
    write,
)
from topics.records.codec import decode
from topics.records.records import JobClose, JobControl

TOKENS = 8  # of one outcome


def announced(engine: sa.Engine, job_id: UUID) -> list[tuple[str, CloseReason | None]]:
    """The topic and reason of each close in the outbox."""
    query = sa.select(outbox).where(outbox.c.key == job_id.bytes).order_by(outbox.c.id)
    found: list[tuple[str, CloseReason | None]] = []
    for row in fetch(engine, query):
        headers = [(name, text.encode()) for name, text in row.headers]
        if row.topic == "results":
            found.append((row.topic, decode(JobClose, row.value, headers).reason))
        if row.topic == "control":
            found.append((row.topic, decode(JobControl, row.value, headers).closed))
    return sorted(found)


def test_failure_above_the_budget_closes_the_job(engine: sa.Engine) -> None:
    job_id = add_running_job(engine, 10, max_failed_items=2)
    write(engine, job_id, failed(0), failed(1), outcome(2))
    assert job(engine, job_id)["state"] == "in_progress"
    write(engine, job_id, failed(3))
    row = job(engine, job_id)
    assert (row["state"], row["close_reason"]) == ("cancelling", "failure_budget")
    assert row["cancelling_at"] is not None
    reason = CloseReason.FAILURE_BUDGET
    assert announced(engine, job_id) == [("control", reason), ("results", reason)]


def test_in_flight_outcomes_count_until_the_close(engine: sa.Engine) -> None:
    job_id = add_running_job(engine, 10, max_failed_items=0)
    write(engine, job_id, failed(0))
    write(engine, job_id, outcome(1), failed(2))  # in front of the close on the log
    assert close(engine, job_id, CloseReason.FAILURE_BUDGET)
    write(engine, job_id, outcome(3))  # after the close
    counted = counters(engine, job_id)
    assert [counted[o.label] for o in Outcome] == [1, 2, 7, 0]
    assert {row.error_code for row in item_table(engine, job_id)[3:]} == {"failure_budget_exceeded"}
    assert job(engine, job_id)["settled_at"] is not None
    assert_totals_agree(engine, job_id)
    assert len(announced(engine, job_id)) == 2


def test_token_that_reaches_the_cap_closes_the_job(engine: sa.Engine) -> None:
    job_id = add_running_job(engine, 10, max_total_tokens=3 * TOKENS)
    write(engine, job_id, outcome(0), outcome(1))
    assert job(engine, job_id)["close_reason"] is None
    write(engine, job_id, outcome(2))
    assert job(engine, job_id)["close_reason"] == "spend_cap"
    assert ("results", CloseReason.SPEND_CAP) in announced(engine, job_id)
    assert close(engine, job_id, CloseReason.SPEND_CAP)
    assert {row.error_code for row in item_table(engine, job_id)[3:]} == {"spend_cap_reached"}


def test_failure_ratio_needs_its_sample(engine: sa.Engine) -> None:
    job_id = add_running_job(engine, 20, max_failed_ratio=0.5, failed_ratio_sample=4)
    write(engine, job_id, failed(0), failed(1), failed(2))
    assert job(engine, job_id)["close_reason"] is None
    write(engine, job_id, outcome(3))
    assert job(engine, job_id)["close_reason"] == "failure_budget"


def test_settled_or_closed_job_is_not_closed_again(engine: sa.Engine) -> None:
    settled = add_running_job(engine, 2, max_failed_items=0)
    write(engine, settled, failed(0), failed(1))
    row = job(engine, settled)
    assert (row["state"], row["close_reason"]) == ("finalizing", None)

    closed = add_running_job(engine, 10, max_failed_items=0, close_reason="expired")
    write(engine, closed, failed(0))
    assert job(engine, closed)["close_reason"] == "expired"
    assert announced(engine, closed) == []


def test_refused_group_and_duplicates_count_once(engine: sa.Engine) -> None:
    job_id = add_running_job(engine, 10, max_failed_items=1)
    for _ in range(3):
        write(engine, job_id, failed(0), outcome(1))
    assert job(engine, job_id)["close_reason"] is None
    write(engine, job_id, failed(0), failed(2))
    assert job(engine, job_id)["close_reason"] == "failure_budget"
