"""Goal: after a close every item has exactly one row, and later outcomes do not count."""

import threading
from collections import Counter

import pytest
import sqlalchemy as sa

from core.ids import new_uuid
from core.outcomes import Outcome
from core.states import CloseReason
from results.writer.day_partitions import DayPartitions
from results.writer.item_writer import ItemWriter
from results.writer.job_closer import JobCloser
from results.writer.open_work import run_all
from tests.integration.results.outcomes import (
    add_running_job,
    assert_totals_agree,
    counters,
    event_count,
    failed,
    item_table,
    job,
    ledger,
    outcome,
)
from topics.records.records import JobClose


@pytest.fixture
def partitions(engine: sa.Engine) -> DayPartitions:
    return DayPartitions(engine)


@pytest.fixture
def writer(engine: sa.Engine, partitions: DayPartitions) -> ItemWriter:
    return ItemWriter(engine, partitions)


class StopAfter(threading.Event):
    """Stops after a number of checks, like a crash between two slices."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self._looks = looks

    def is_set(self) -> bool:
        self._looks -= 1
        return self._looks < 0


def test_close_gives_missing_items_its_outcome(
    engine: sa.Engine, partitions: DayPartitions, writer: ItemWriter
) -> None:
    job_id = add_running_job(engine, 10, state="cancelling", close_reason="cancelled")
    closer = JobCloser(engine, partitions, slice_items=4)
    close = JobClose(job_id, 0, CloseReason.CANCELLED)

    writer.write({job_id: [outcome(8), failed(2)]})
    assert run_all(closer.close_steps(close), threading.Event())
    settled = job(engine, job_id)
    writer.write({job_id: [outcome(0), outcome(8)]})
    assert run_all(closer.close_steps(close), threading.Event())

    rows = item_table(engine, job_id)
    kinds = Counter(row.outcome for row in rows)
    assert kinds == {Outcome.SUCCEEDED: 1, Outcome.FAILED: 1, Outcome.CANCELLED: 8}
    assert rows[0].error_code == "batch_cancelled"
    assert (rows[0].custom_id, rows[0].status_code, rows[0].body) == (None, 0, None)
    assert (settled["state"], settled["settled_at"] is not None) == ("cancelling", True)
    assert job(engine, job_id) == settled
    assert ledger(engine, job_id)["item_count"] == 2
    assert_totals_agree(engine, job_id)


def test_expired_job_is_finalised(engine: sa.Engine, partitions: DayPartitions) -> None:
    job_id = add_running_job(engine, 3, close_reason="expired")
    closer = JobCloser(engine, partitions)

    assert run_all(closer.close_steps(JobClose(job_id, 0, CloseReason.EXPIRED)), threading.Event())

    assert {row.error_code for row in item_table(engine, job_id)} == {"batch_expired"}
    assert counters(engine, job_id)["expired"] == 3
    assert job(engine, job_id)["state"] == "finalizing"
    assert event_count(engine) == 1


def test_close_of_a_complete_job_adds_no_rows(
    engine: sa.Engine, partitions: DayPartitions, writer: ItemWriter
) -> None:
    job_id = add_running_job(engine, 1)
    writer.write({job_id: [outcome(0)]})

    assert run_all(
        JobCloser(engine, partitions).close_steps(JobClose(job_id, 0, CloseReason.EXPIRED)),
        threading.Event(),
    )

    assert counters(engine, job_id)["closed_reason"] == "expired"
    assert_totals_agree(engine, job_id)


def test_first_close_reason_wins(engine: sa.Engine, partitions: DayPartitions) -> None:
    job_id = add_running_job(engine, 4, close_reason="expired")
    closer = JobCloser(engine, partitions, slice_items=2)

    assert not run_all(closer.close_steps(JobClose(job_id, 0, CloseReason.EXPIRED)), StopAfter(1))
    assert run_all(
        closer.close_steps(JobClose(job_id, 0, CloseReason.CANCELLED)), threading.Event()
    )

    assert {row.outcome for row in item_table(engine, job_id)} == {Outcome.EXPIRED}


def test_close_of_an_unknown_job_is_skipped(engine: sa.Engine, partitions: DayPartitions) -> None:
    closer = JobCloser(engine, partitions)

    assert run_all(
        closer.close_steps(JobClose(new_uuid(), 0, CloseReason.EXPIRED)), threading.Event()
    )


@pytest.mark.parametrize("slices_before_the_crash", [0, 1, 2])
def test_close_of_30_000_items_continues_after_a_crash(
    engine: sa.Engine,
    partitions: DayPartitions,
    writer: ItemWriter,
    slices_before_the_crash: int,
) -> None:
    job_id = add_running_job(engine, 30_100, state="cancelling", close_reason="cancelled")
    writer.write({job_id: [outcome(index) for index in range(0, 30_100, 301)]})
    close = JobClose(job_id, 0, CloseReason.CANCELLED)

    is_done = run_all(
        JobCloser(engine, partitions).close_steps(close), StopAfter(slices_before_the_crash)
    )
    assert not is_done
    assert job(engine, job_id)["settled_at"] is None
    if slices_before_the_crash:  # from the first slice on nothing counts
        writer.write({job_id: [outcome(30_099)]})
    assert run_all(JobCloser(engine, partitions).close_steps(close), threading.Event())

    counted = counters(engine, job_id)
    assert (counted["succeeded"], counted["cancelled"]) == (100, 30_000)
    assert job(engine, job_id)["settled_at"] is not None
    assert_totals_agree(engine, job_id)
