"""Goal: after a close every item has exactly one row, and later outcomes do not count."""

import threading
from collections import Counter

import pytest
import sqlalchemy as sa

from core.ids import new_uuid
from core.outcomes import Outcome
from core.states import CloseReason
from tests.integration.results.outcomes import (
    add_running_job,
    assert_totals_agree,
    close,
    counters,
    event_count,
    failed,
    item_table,
    job,
    ledger,
    outcome,
    settle,
    write,
)


class StopAfter(threading.Event):
    """Stops after a number of checks, like a crash between two slices."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self._looks = looks

    def is_set(self) -> bool:
        self._looks -= 1
        return self._looks < 0


def test_close_gives_missing_items_its_outcome(engine: sa.Engine) -> None:
    job_id = add_running_job(engine, 10, state="cancelling", close_reason="cancelled")

    write(engine, job_id, outcome(8), failed(2))
    assert close(engine, job_id, CloseReason.CANCELLED, slice_items=4)
    settled = job(engine, job_id)
    write(engine, job_id, outcome(0), outcome(8))
    assert close(engine, job_id, CloseReason.CANCELLED, slice_items=4)

    rows = item_table(engine, job_id)
    kinds = Counter(row.outcome for row in rows)
    assert kinds == {Outcome.SUCCEEDED: 1, Outcome.FAILED: 1, Outcome.CANCELLED: 8}
    assert rows[0].error_code == "batch_cancelled"
    assert (rows[0].custom_id, rows[0].status_code, rows[0].body) == (None, 0, None)
    assert (settled["state"], settled["settled_at"] is not None) == ("cancelling", True)
    assert job(engine, job_id) == settled
    assert ledger(engine, job_id)["item_count"] == 2
    assert_totals_agree(engine, job_id)


def test_first_close_reason_wins_and_an_expired_job_is_finalised(engine: sa.Engine) -> None:
    job_id = add_running_job(engine, 4, close_reason="expired")

    assert not close(engine, job_id, CloseReason.EXPIRED, stop=StopAfter(1), slice_items=2)
    assert close(engine, job_id, CloseReason.CANCELLED, slice_items=2)

    assert {row.error_code for row in item_table(engine, job_id)} == {"batch_expired"}
    assert counters(engine, job_id)["expired"] == 4
    assert job(engine, job_id)["state"] == "finalizing"
    assert event_count(engine) == 1


def test_close_of_a_complete_or_unknown_job_adds_no_rows(engine: sa.Engine) -> None:
    job_id = settle(engine, outcome(0))

    assert close(engine, job_id, CloseReason.EXPIRED)
    assert close(engine, new_uuid(), CloseReason.EXPIRED)

    assert counters(engine, job_id)["closed_reason"] == "expired"
    assert_totals_agree(engine, job_id)


@pytest.mark.parametrize("slices_before_the_crash", [0, 1, 2])
def test_close_of_several_slices_continues_after_a_crash(
    engine: sa.Engine, slices_before_the_crash: int
) -> None:
    job_id = add_running_job(engine, 3_100, state="cancelling", close_reason="cancelled")
    write(engine, job_id, *map(outcome, range(0, 3_100, 31)))
    reason = CloseReason.CANCELLED

    assert not close(
        engine, job_id, reason, stop=StopAfter(slices_before_the_crash), slice_items=1000
    )
    assert job(engine, job_id)["settled_at"] is None
    if slices_before_the_crash:  # from the first slice on nothing counts
        write(engine, job_id, outcome(3_099))
    assert close(engine, job_id, reason, slice_items=1000)

    counted = counters(engine, job_id)
    assert (counted["succeeded"], counted["cancelled"]) == (100, 3_000)
    assert job(engine, job_id)["settled_at"] is not None
    assert_totals_agree(engine, job_id)
