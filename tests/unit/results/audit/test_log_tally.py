"""Goal: the log is tallied by the writer's rules, and differences from the rows are reported."""

import tracemalloc
from array import array
from typing import Any
from uuid import UUID

import pytest

from core.outcomes import Outcome
from core.states import CloseReason
from results.audit.audit_report import (
    ITEMS_NAMED_MAX,
    compare_items,
    compare_log,
    compare_recorded_totals,
)
from results.audit.item_fingerprints import (
    ItemFingerprints,
    RowFingerprints,
    close_fields,
    copy_fields,
    outcome_fields,
)
from results.audit.log_tally import LogTally
from results.audit.recorded_totals import ItemTotals, RecordedTotals
from results.writer.item_writer import UNSTORABLE_CODE
from tests.integration.results.outcomes import failed, job_ref, outcome
from topics.records.records import CopiesDue, ItemOutcome, JobClose, Outcomes

JOB = UUID(int=1)
CLOSE = JobClose(JOB, 0, CloseReason.CANCELLED)


def rows_of(
    total: int, *items: ItemOutcome, close: dict[int, Outcome] | None = None
) -> RowFingerprints:
    rows = RowFingerprints(total)
    for item in items:
        rows.record(item.index, outcome_fields(item))
        if item.error_code == UNSTORABLE_CODE:
            rows.unstorable[item.index] = item.attempt
    for index, end in (close or {}).items():
        rows.record(index, close_fields(end, f"batch_{end.label}"))
    return rows


def tallied(
    rows: RowFingerprints, *records: Outcomes | JobClose | CopiesDue, late_from: int = 10**9
) -> LogTally:
    tally = LogTally(rows, ItemFingerprints(len(rows.known)))
    for number, record in enumerate(records):
        tally.add_record(record, is_late=number >= late_from)
    tally.finish()
    return tally


def outcomes_of(*items: ItemOutcome) -> Outcomes:
    return Outcomes(job_ref(JOB), list(items))


def with_originals(rows: RowFingerprints, originals: dict[int, int]) -> RowFingerprints:
    rows.originals = array("i", [originals.get(n, -1) for n in range(len(rows.known))])
    return rows


def test_first_result_wins_and_a_close_ends_open_items() -> None:
    rows = rows_of(4, outcome(0), failed(1), close={2: Outcome.CANCELLED, 3: Outcome.CANCELLED})
    tally = tallied(
        rows,
        outcomes_of(outcome(0), failed(0), failed(1), outcome(9)),
        outcomes_of(outcome(1)),
        CLOSE,
        outcomes_of(outcome(2)),
        JobClose(JOB, 0, CloseReason.EXPIRED),
    )

    assert not compare_items(rows, tally).is_any
    assert tally.totals == ItemTotals(1, 1, 2, 0, 3, 5, 0, 0, 2)
    counts = tally.counts
    assert (counts.repeats, counts.unknown, counts.after_close) == (2, 1, 2)
    assert tally.closed_reason is CloseReason.CANCELLED


def with_copies(rows: RowFingerprints, copies: dict[int, ItemOutcome]) -> RowFingerprints:
    """Make rows copies of these outcomes."""
    with_originals(rows, {index: original.index for index, original in copies.items()})
    for index, original in copies.items():
        rows.record(index, copy_fields(original))
    return rows


def test_copies_get_results_from_before_the_close() -> None:
    rows = rows_of(7, outcome(0), failed(1), close={2: Outcome.CANCELLED, 6: Outcome.CANCELLED})
    rows = with_copies(rows, {3: outcome(0), 4: outcome(0), 5: failed(1)})
    rows.originals[6] = 2
    tally = tallied(
        rows, outcomes_of(outcome(0)), CopiesDue(JOB, 0, 7), outcomes_of(failed(1)), CLOSE
    )

    assert not compare_items(rows, tally).is_any
    assert tally.totals == ItemTotals(3, 2, 2, 0, 3, 5, 0, 0, 2, 3)
    assert tally.counts.copies == 3


def test_differing_copy_is_reported() -> None:
    rows = with_copies(rows_of(3, outcome(0)), {1: outcome(0), 2: outcome(0, body=b"other")})
    tally = tallied(rows, outcomes_of(outcome(0)))

    assert compare_items(rows, tally).row_differs == [2]


def test_copies_of_late_results_are_no_difference() -> None:
    rows = with_originals(RowFingerprints(2), {1: 0})
    tally = tallied(rows, outcomes_of(outcome(0)), late_from=0)

    assert compare_items(rows, tally).not_written_yet == 2


def test_retryable_failure_is_final_if_the_row_contains_it() -> None:
    again = {"retryable": True, "status_code": 500}
    last = failed(0, attempt=2, **again)
    rows = rows_of(2, last, outcome(1, attempt=2))
    tally = tallied(
        rows,
        outcomes_of(failed(0, attempt=1, **again), failed(1, attempt=1, **again)),
        outcomes_of(last, outcome(1, attempt=2), last),
    )

    assert not compare_items(rows, tally).is_any
    assert (tally.counts.retries, tally.counts.repeats) == (2, 1)
    assert (tally.totals.failed, tally.totals.succeeded) == (1, 1)


def test_repeated_attempt_is_final_with_a_permanent_failure() -> None:
    """The first failure of attempt 2 led to a retry; the second, of the same attempt, ended it."""
    final = failed(0, attempt=2)
    rows = rows_of(1, final)
    passing = failed(0, attempt=2, retryable=True, status_code=500)
    tally = tallied(rows, outcomes_of(passing), outcomes_of(final))

    assert not compare_items(rows, tally).is_any
    assert (tally.counts.retries, tally.totals.failed) == (1, 1)


def test_audit_of_copies_needs_a_few_bytes_per_item() -> None:
    count = 20_000
    rows = with_originals(RowFingerprints(count), {})
    record = outcomes_of(*map(outcome, range(count)))
    tracemalloc.start()
    try:
        tally = tallied(rows, record)
        assert tracemalloc.get_traced_memory()[0] < 40 * count
        assert tally.counts.outcomes == count
    finally:
        tracemalloc.stop()


def test_unstorable_result_is_no_difference() -> None:
    rows = rows_of(1, failed(0, status_code=0, error_code=UNSTORABLE_CODE))
    tally = tallied(rows, outcomes_of(outcome(0, custom_id="a\0b")))

    assert not compare_items(rows, tally).is_any
    assert tally.totals == ItemTotals(failed=1)


@pytest.mark.parametrize(
    "field",
    [
        {"status_code": 201},
        {"attempt": 2},
        {"input_tokens": 4},
        {"reasoning_tokens": 1},
        {"body": b"12"},
        {"body_key": "k"},
        {"outcome": Outcome.EXPIRED},
    ],
)
def test_every_field_of_a_row_is_compared(field: dict[str, Any]) -> None:
    items = [outcome(0), outcome(1), outcome(2)]
    rows = rows_of(3, *items)
    found = compare_items(rows, tallied(rows, outcomes_of(items[0], outcome(1, **field), items[2])))

    assert (found.is_any, found.row_differs, found.row_differs_count) == (True, [1], 1)


def test_missing_rows_and_results_are_reported() -> None:
    rows = rows_of(500, *map(outcome, range(200)))
    on_time = outcomes_of(*map(outcome, range(200, 300)))
    late = outcomes_of(*map(outcome, range(300, 310)))

    found = compare_items(rows, tallied(rows, on_time, late, late_from=1))

    assert (found.row_missing, found.row_missing_count) == (list(range(200, 300)), 100)
    assert found.result_missing == list(range(ITEMS_NAMED_MAX))
    assert (found.result_missing_count, found.not_written_yet) == (200, 10)


def totals(counters: ItemTotals, ledger: ItemTotals, **fields: Any) -> RecordedTotals:
    given: dict[str, Any] = {
        "state": "completed",
        "total_count": counters.ended,
        "is_settled": True,
        "closed_reason": None,
        "sequenced": counters.ended,
    }
    return RecordedTotals(counters=counters, ledger=ledger, **(given | fields))


ROWS = ItemTotals(3, 2, 0, 0, 10, 20, 1, 2, 4)
COUNTERS = ROWS._replace(billed=0)
LEDGER = ItemTotals(0, 0, 0, 0, *ROWS[4:])


def test_equal_totals_have_no_difference() -> None:
    for sequenced in (COUNTERS.ended, None):  # a request needs no order
        whole = totals(COUNTERS, LEDGER, sequenced=sequenced)
        assert compare_recorded_totals(whole, ROWS, whole) == []
    assert compare_log(ROWS, ROWS) == []


def test_rows_of_a_running_job_may_lie_between() -> None:
    running = {"is_settled": False, "total_count": 100}
    before = totals(COUNTERS, LEDGER, **running)
    after = totals(COUNTERS._replace(succeeded=9), LEDGER._replace(billed=10), **running)
    between = ROWS._replace(succeeded=5, billed=6)

    assert compare_recorded_totals(before, between, after) == []
    assert compare_recorded_totals(before, ROWS._replace(succeeded=10, billed=11), after) != []


@pytest.mark.parametrize(
    ("rows", "counters", "ledger", "fields", "what"),
    [
        (ROWS._replace(failed=1), COUNTERS, LEDGER, {}, "items.failed"),
        (ROWS._replace(input_tokens=9), COUNTERS, LEDGER, {}, "usage.input_tokens"),
        (ROWS, COUNTERS, LEDGER._replace(output_tokens=1), {}, "usage.output_tokens"),
        (ROWS, COUNTERS, LEDGER._replace(billed=5), {}, "usage.items"),
        (ROWS, COUNTERS, LEDGER, {"sequenced": 4}, "items.ended"),
        (ROWS, COUNTERS, LEDGER, {"total_count": 6}, "items.ended"),
        (ROWS, COUNTERS, LEDGER, {"total_count": 4, "is_settled": False}, "items.ended"),
    ],
)
def test_each_recorded_total_is_compared(
    rows: ItemTotals, counters: ItemTotals, ledger: ItemTotals, fields: dict[str, Any], what: str
) -> None:
    wrong = totals(counters, ledger, **fields)

    assert [difference.what for difference in compare_recorded_totals(wrong, rows, wrong)] == [what]
