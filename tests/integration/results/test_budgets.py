"""Goal: a job closes itself at a budget, outcomes in flight still count, crashes quarantine."""

import threading
from typing import Any
from uuid import UUID, uuid4

import sqlalchemy as sa

from core.ids import JOB, QUARANTINE, public_id
from core.outcomes import Outcome
from core.states import CloseReason
from jobs.tables.quarantines import job_process_ends, tenant_quarantines
from results.writer.crash_budgets import CrashBudgets
from results.writer.day_partitions import DayPartitions
from results.writer.job_closer import JobCloser
from results.writer.open_work import run_all
from tenancy.installation_log import INSTALLATION
from tenancy.tables import audit_log
from tests.integration.jobs.rows import add_running_job as running_job
from tests.integration.jobs.rows import outbox_records
from tests.integration.results.outcomes import (
    add_running_job,
    assert_totals_agree,
    close,
    count,
    counters,
    failed,
    fetch,
    item_table,
    job,
    job_ref,
    outcome,
    write,
)
from topics.records.catalogue import CONTROL, RESULTS
from topics.records.records import JobClose, JobControl, Outcomes

TOKENS = 8  # of one outcome


def announced(engine: sa.Engine, job_id: UUID) -> list[JobClose]:
    """The closes in the outbox, each of which is on `control`, too."""
    with engine.connect() as connection:
        closes = outbox_records(connection, RESULTS, JobClose)
        controls = outbox_records(connection, CONTROL, JobControl)
    assert [c.closed for c in controls] == [c.reason for c in closes]
    return [close for close in closes if close.job_id == job_id]


def test_failure_above_the_budget_closes_the_job(engine: sa.Engine) -> None:
    job_id = add_running_job(engine, 10, max_failed_items=2)
    write(engine, job_id, failed(0), failed(1), outcome(2))
    assert job(engine, job_id)["state"] == "in_progress"
    write(engine, job_id, failed(3))
    row = job(engine, job_id)
    assert (row["state"], row["close_reason"]) == ("cancelling", "failure_budget")
    assert row["cancelling_at"] is not None
    assert [c.reason for c in announced(engine, job_id)] == [CloseReason.FAILURE_BUDGET]


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
    assert len(announced(engine, job_id)) == 1


def test_token_that_reaches_the_cap_closes_the_job(engine: sa.Engine) -> None:
    job_id = add_running_job(engine, 10, max_total_tokens=3 * TOKENS)
    write(engine, job_id, outcome(0), outcome(1))
    assert job(engine, job_id)["close_reason"] is None
    write(engine, job_id, outcome(2))
    assert job(engine, job_id)["close_reason"] == "spend_cap"
    assert [c.reason for c in announced(engine, job_id)] == [CloseReason.SPEND_CAP]
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


BUDGET = 60
HOUR_S = 3600.0


def report(
    engine: sa.Engine, job_id: UUID, *process_ends: UUID, quarantine_s: float = HOUR_S
) -> None:
    """Count the ends as the writer does when it reads a record of them."""
    record = Outcomes(job_ref(job_id), [], [*process_ends])
    CrashBudgets(engine, quarantine_s).count_process_ends([record])


def crash(engine: sa.Engine, job_id: UUID, times: int, **given: Any) -> None:
    report(engine, job_id, *(uuid4() for _ in range(times)), **given)


def test_a_job_beyond_its_crash_budget_closes_and_keeps_its_outcomes(engine: sa.Engine) -> None:
    job_id = add_running_job(engine, 100)
    write(engine, job_id, outcome(0), failed(1))
    crash(engine, job_id, BUDGET)
    assert job(engine, job_id)["state"] == "in_progress"
    assert count(engine, tenant_quarantines) == 0

    crash(engine, job_id, 1)
    row = job(engine, job_id)
    assert (row["state"], row["close_reason"]) == ("cancelling", "crash_budget")

    write(engine, job_id, outcome(2))  # in front of the close on the log
    (close,) = announced(engine, job_id)
    assert close.close_reason is CloseReason.CRASH_BUDGET
    assert close.reason is CloseReason.FAILURE_BUDGET  # which older releases know, too
    closer = JobCloser(engine, DayPartitions(engine))
    assert run_all(closer.close_steps(close), threading.Event())
    write(engine, job_id, outcome(3))  # after it
    counted = counters(engine, job_id)
    assert [counted[kind.label] for kind in Outcome] == [2, 1, 97, 0]
    assert {row.error_code for row in item_table(engine, job_id)[3:]} == {"crash_budget_exceeded"}
    assert job(engine, job_id)["settled_at"] is not None
    assert_totals_agree(engine, job_id)


def test_a_report_that_is_read_again_counts_once(engine: sa.Engine) -> None:
    job_id, ends = add_running_job(engine, 100), [uuid4() for _ in range(BUDGET)]
    for _ in range(3):
        report(engine, job_id, *ends)
    report(engine, job_id, *ends[:5], ends[0])
    assert job(engine, job_id)["close_reason"] is None
    assert count(engine, job_process_ends) == BUDGET


def test_twenty_poison_items_of_5000_do_not_close_their_job(engine: sa.Engine) -> None:
    """Each crashes three processes that count at most: in a tenth, and alone on two hosts."""
    job_id = add_running_job(engine, 5000)
    crash(engine, job_id, 20 * 3)
    assert job(engine, job_id)["close_reason"] is None
    crash(engine, job_id, 15)  # 75 is three of each of 0.5 %
    assert job(engine, job_id)["close_reason"] is None
    crash(engine, job_id, 1)
    assert job(engine, job_id)["close_reason"] == "crash_budget"


def test_the_close_starts_one_quarantine_that_a_later_one_prolongs(engine: sa.Engine) -> None:
    job_id = add_running_job(engine, 100)
    crash(engine, job_id, BUDGET + 1)
    crash(engine, job_id, 5)  # in flight: the job is closed by then
    (first,) = fetch(engine, sa.select(tenant_quarantines))
    assert (first.tenant_id, first.pool, first.job_id) == (
        job(engine, job_id)["tenant_id"],
        "pool-small",
        job_id,
    )
    assert (first.ends_at - first.began_at).total_seconds() == HOUR_S

    entries = fetch(engine, sa.select(audit_log).order_by(audit_log.c.created_at))
    assert [entry.tenant_id for entry in entries] == [first.tenant_id, INSTALLATION]
    for entry in entries:
        assert (entry.actor, entry.action) == ("system", "quarantine.started")
        assert entry.subject == public_id(QUARANTINE, first.id)
        assert entry.details["batch"] == public_id(JOB, job_id)

    with engine.begin() as connection:
        again = running_job(connection, first.tenant_id, 100)
    crash(engine, again, BUDGET + 1, quarantine_s=2 * HOUR_S)
    (second,) = fetch(engine, sa.select(tenant_quarantines))
    assert (second.id, second.job_id) == (first.id, again)
    assert second.ends_at > first.ends_at


def test_a_duration_of_zero_quarantines_nobody(engine: sa.Engine) -> None:
    job_id = add_running_job(engine, 100)
    crash(engine, job_id, BUDGET + 1, quarantine_s=0)
    assert job(engine, job_id)["close_reason"] == "crash_budget"
    assert count(engine, tenant_quarantines) == 0


def test_a_job_that_has_ended_or_is_unknown_counts_nothing(engine: sa.Engine) -> None:
    settled = add_running_job(engine, 1)
    write(engine, settled, outcome(0))
    crash(engine, settled, BUDGET + 1)
    assert job(engine, settled)["state"] == "finalizing"
    crash(engine, uuid4(), BUDGET + 1)
    assert count(engine, tenant_quarantines) == 0
