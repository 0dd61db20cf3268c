"""Goal: a job closes itself at its budget, and outcomes in flight still count."""

import threading
from uuid import UUID

import pytest
import sqlalchemy as sa

from core.outcomes import Outcome
from core.states import CloseReason
from jobs.tables.outbox import outbox
from results.writer.day_partitions import DayPartitions
from results.writer.item_writer import ItemWriter
from results.writer.job_closer import JobCloser
from results.writer.open_work import run_all
from tests.integration.results.outcomes import (
    add_running_job,
    assert_totals_agree,
    counters,
    failed,
    item_table,
    job,
    outcome,
)
from topics.records.codec import decode
from topics.records.records import JobClose, JobControl

TOKENS = 8  # of one outcome


@pytest.fixture
def writer(engine: sa.Engine) -> ItemWriter:
    return ItemWriter(engine, DayPartitions(engine))


def closes_and_controls(engine: sa.Engine, job_id: UUID) -> tuple[list[JobClose], list[JobControl]]:
    """The closes and control states in the outbox."""
    query = sa.select(outbox).where(outbox.c.key == job_id.bytes).order_by(outbox.c.id)
    with engine.connect() as connection:
        rows = connection.execute(query).all()
    headers = [[(name, text.encode()) for name, text in row.headers] for row in rows]
    return (
        [
            decode(JobClose, r.value, h)
            for r, h in zip(rows, headers, strict=True)
            if r.topic == "results"
        ],
        [
            decode(JobControl, r.value, h)
            for r, h in zip(rows, headers, strict=True)
            if r.topic == "control"
        ],
    )


def test_failure_above_the_budget_closes_the_job(engine: sa.Engine, writer: ItemWriter) -> None:
    job_id = add_running_job(engine, 10, max_failed_items=2)
    writer.write({job_id: [failed(0), failed(1), outcome(2)]})
    assert job(engine, job_id)["state"] == "in_progress"
    writer.write({job_id: [failed(3)]})
    row = job(engine, job_id)
    assert (row["state"], row["close_reason"]) == ("cancelling", "failure_budget")
    assert row["cancelling_at"] is not None
    closes, controls = closes_and_controls(engine, job_id)
    assert [close.reason for close in closes] == [CloseReason.FAILURE_BUDGET]
    assert [control.closed for control in controls] == [CloseReason.FAILURE_BUDGET]


def test_in_flight_outcomes_count_until_the_close(engine: sa.Engine, writer: ItemWriter) -> None:
    job_id = add_running_job(engine, 10, max_failed_items=0)
    writer.write({job_id: [failed(0)]})
    writer.write({job_id: [outcome(1), failed(2)]})  # in front of the close on the log
    ((close,), _) = closes_and_controls(engine, job_id)
    assert run_all(JobCloser(engine, DayPartitions(engine)).close_steps(close), threading.Event())
    writer.write({job_id: [outcome(3)]})  # after the close
    counted = counters(engine, job_id)
    assert [counted[o.label] for o in Outcome] == [1, 2, 7, 0]
    assert {row.error_code for row in item_table(engine, job_id)[3:]} == {"failure_budget_exceeded"}
    assert job(engine, job_id)["settled_at"] is not None
    assert_totals_agree(engine, job_id)
    assert len(closes_and_controls(engine, job_id)[0]) == 1


def test_token_that_reaches_the_cap_closes_the_job(engine: sa.Engine, writer: ItemWriter) -> None:
    job_id = add_running_job(engine, 10, max_total_tokens=3 * TOKENS)
    writer.write({job_id: [outcome(0), outcome(1)]})
    assert job(engine, job_id)["close_reason"] is None
    writer.write({job_id: [outcome(2)]})
    assert job(engine, job_id)["close_reason"] == "spend_cap"
    ((close,), _) = closes_and_controls(engine, job_id)
    assert run_all(JobCloser(engine, DayPartitions(engine)).close_steps(close), threading.Event())
    assert {row.error_code for row in item_table(engine, job_id)[3:]} == {"spend_cap_reached"}


def test_failure_ratio_needs_its_sample(engine: sa.Engine, writer: ItemWriter) -> None:
    job_id = add_running_job(engine, 20, max_failed_ratio=0.5, failed_ratio_sample=4)
    writer.write({job_id: [failed(0), failed(1), failed(2)]})
    assert job(engine, job_id)["close_reason"] is None
    writer.write({job_id: [outcome(3)]})
    assert job(engine, job_id)["close_reason"] == "failure_budget"


def test_last_item_settles_a_job_above_its_budget(engine: sa.Engine, writer: ItemWriter) -> None:
    job_id = add_running_job(engine, 2, max_failed_items=0)
    writer.write({job_id: [failed(0), failed(1)]})
    row = job(engine, job_id)
    assert (row["state"], row["close_reason"]) == ("finalizing", None)


def test_closed_job_is_not_closed_again(engine: sa.Engine, writer: ItemWriter) -> None:
    job_id = add_running_job(engine, 10, max_failed_items=0, close_reason="expired")
    writer.write({job_id: [failed(0)]})
    assert job(engine, job_id)["close_reason"] == "expired"
    assert closes_and_controls(engine, job_id) == ([], [])


def test_refused_group_and_duplicates_count_once(engine: sa.Engine, writer: ItemWriter) -> None:
    job_id = add_running_job(engine, 10, max_failed_items=1)
    for _ in range(3):
        writer.write({job_id: [failed(0), outcome(1)]})
    assert job(engine, job_id)["close_reason"] is None
    writer.write({job_id: [failed(0), failed(2)]})
    assert job(engine, job_id)["close_reason"] == "failure_budget"
