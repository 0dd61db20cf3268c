"""Goal: a copy gets the result of its original once and at no cost, in any order of events."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from core.outcomes import Outcome
from core.states import CloseReason
from jobs.tables.jobs import job_counters, jobs
from jobs.tables.retries import dead_items, item_copies
from results.writer.copied_results import CopySlice, CopyWriter, DueCopies, copy_slices
from results.writer.day_partitions import DayPartitions
from results.writer.item_writer import UNSTORABLE_CODE, ItemWriter
from results.writer.open_work import run_all
from tenancy.tables import usage_ledger
from tests.integration.results.outcomes import (
    add_running_job,
    assert_totals_agree,
    close,
    counters,
    execute,
    failed,
    item_table,
    job,
    ledger,
    outcome,
    scalars,
)
from topics.records.records import CopiesDue, ItemOutcome

NEVER = threading.Event()


class Writer:
    """Routes groups like the role, with copies in slices of three."""

    def __init__(self, engine: sa.Engine) -> None:
        self.items = ItemWriter(engine, DayPartitions(engine))
        self.copies = CopyWriter(engine, slice_items=3)

    def write(self, job_id: UUID, *outcomes: ItemOutcome) -> None:
        group = {job_id: list(outcomes)}
        assert run_all(self.copies.copy_steps(group, self.items.write(group)), NEVER)

    def write_due(self, job_id: UUID, first: int, end: int) -> None:
        """Write the copies among a range of items."""
        assert run_all(self.copies.due_copy_steps(CopiesDue(job_id, first, end)), NEVER)


@pytest.fixture
def writer(engine: sa.Engine) -> Writer:
    return Writer(engine)


def add_copies(engine: sa.Engine, job_id: UUID, copies: dict[int, int]) -> None:
    rows = [
        {"job_id": job_id, "item_index": i, "original_index": o, "custom_id": f"request-{i}"}
        for i, o in copies.items()
    ]
    execute(engine, item_copies.insert().values(rows))


def deduplicating(engine: sa.Engine, total: int, copies: dict[int, int], **columns: Any) -> UUID:
    job_id = add_running_job(engine, total, deduplicate=True, **columns)
    add_copies(engine, job_id, copies)
    return job_id


def copied_on_the_bill(engine: sa.Engine, job_id: UUID) -> int:
    query = sa.select(sa.func.sum(usage_ledger.c.copied_count))
    return int(scalars(engine, query.where(usage_ledger.c.job_id == job_id))[0] or 0)


def assert_complete(engine: sa.Engine, job_id: UUID, copied: int) -> None:
    assert_totals_agree(engine, job_id)
    assert counters(engine, job_id)["copied"] == copied
    assert copied_on_the_bill(engine, job_id) == copied
    assert sum(row.copied_from is not None for row in item_table(engine, job_id)) == copied


def test_copies_get_result_and_body_at_no_cost(engine: sa.Engine, writer: Writer) -> None:
    copies = {n: n % 2 for n in range(2, 20)}
    job_id = deduplicating(engine, 20, copies)

    writer.write(job_id, outcome(0, body_key="answers/0", body=b""), outcome(1))

    rows = item_table(engine, job_id)
    assert [row.custom_id for row in rows] == [f"request-{n}" for n in range(20)]
    assert [row.copied_from for row in rows] == [None, None, *copies.values()]
    assert {row.body for row in rows[3::2]} == {rows[1].body}
    assert {row.body_key for row in rows[2::2]} == {"answers/0"}
    assert {(row.attempt, row.input_tokens, row.output_tokens) for row in rows[2:]} == {(0, 0, 0)}
    assert ledger(engine, job_id)["item_count"] == 2
    assert ledger(engine, job_id)["input_tokens"] == 2 * rows[0].input_tokens
    assert job(engine, job_id)["state"] == "finalizing"
    assert_complete(engine, job_id, copied=18)


def test_redelivered_original_adds_no_copies(engine: sa.Engine, writer: Writer) -> None:
    job_id = deduplicating(engine, 6, {3: 0, 4: 0})
    writer.write(job_id, outcome(0), outcome(1))
    writer.write(job_id, outcome(0, body=b'"late"'), outcome(1), outcome(0))
    Writer(engine).write(job_id, outcome(0))

    assert len(item_table(engine, job_id)) == 4
    assert_complete(engine, job_id, copied=2)


def test_copies_continue_after_a_crash(engine: sa.Engine, writer: Writer) -> None:
    job_id = deduplicating(engine, 9, dict.fromkeys(range(1, 9), 0))
    writer.items.write({job_id: [outcome(0)]})  # killed before the first copy
    assert len(item_table(engine, job_id)) == 1

    stop = threading.Event()
    stop.set()
    assert not run_all(writer.copies.copy_steps({job_id: [outcome(0)]}, [job_id]), stop)
    assert job(engine, job_id)["settled_at"] is None
    Writer(engine).write(job_id, outcome(0))

    assert job(engine, job_id)["settled_at"] is not None
    assert_complete(engine, job_id, copied=8)


def test_copy_registered_after_its_original_gets_its_result(
    engine: sa.Engine, writer: Writer
) -> None:
    job_id = deduplicating(engine, 4, {1: 0}, sealed=False, total_final=False)
    writer.write(job_id, outcome(0))
    add_copies(engine, job_id, {4: 0, 5: 0, 6: 2})
    writer.write(job_id, outcome(0))
    assert [row.item_index for row in item_table(engine, job_id)] == [0, 1]  # not accepted yet
    execute(engine, sa.update(jobs).values(total_count=7))

    writer.write_due(job_id, 4, 7)
    writer.write_due(job_id, 4, 7)
    assert [row.item_index for row in item_table(engine, job_id)] == [0, 1, 4, 5]
    writer.write(job_id, outcome(2))

    assert [row.item_index for row in item_table(engine, job_id)] == [0, 1, 2, 4, 5, 6]
    assert_complete(engine, job_id, copied=4)


@pytest.fixture
def search_counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Records how many copies each search found."""
    counts: list[int] = []

    def counted(due: Sequence[DueCopies], **limits: int) -> Iterator[CopySlice]:
        counts.append(sum(one.copy_count for one in due))
        return copy_slices(due, **limits)

    monkeypatch.setattr("results.writer.copied_results.copy_slices", counted)
    return counts


@pytest.mark.parametrize("by_record", [False, True])
def test_many_copies_are_searched_in_ranges(
    engine: sa.Engine, writer: Writer, search_counts: list[int], by_record: bool
) -> None:
    job_id = deduplicating(engine, 43, {n: n % 2 for n in range(2, 43)})
    writer.copies = CopyWriter(engine, slice_items=3, search_items_max=8)
    group = {job_id: [outcome(0), outcome(1)]}
    writer.items.write(group)
    if by_record:
        writer.write_due(job_id, 0, 43)
    else:
        assert run_all(writer.copies.copy_steps(group, [job_id]), NEVER)

    assert search_counts == [6, 8, 8, 8, 8, 3]
    assert_complete(engine, job_id, copied=41)


def test_few_copies_of_a_large_job_need_one_search(
    engine: sa.Engine, writer: Writer, search_counts: list[int]
) -> None:
    job_id = deduplicating(engine, 43, {9: 0, 19: 0, 29: 1, 39: 2})
    writer.copies = CopyWriter(engine, slice_items=3, search_items_max=3)
    writer.write(job_id, outcome(0), outcome(1))

    assert search_counts == [3]
    assert_complete(engine, job_id, copied=3)


def test_stop_between_two_searches_leaves_copies_to_the_next_owner(
    engine: sa.Engine, writer: Writer
) -> None:
    job_id = deduplicating(engine, 20, dict.fromkeys(range(1, 20), 0))
    writer.items.write({job_id: [outcome(0)]})
    stop = threading.Event()
    stop.set()
    copies = CopyWriter(engine, search_items_max=8)
    assert not run_all(copies.due_copy_steps(CopiesDue(job_id, 0, 20)), stop)
    writer.write_due(job_id, 0, 20)
    assert_complete(engine, job_id, copied=19)


def test_copies_due_record_concerns_its_own_items(engine: sa.Engine, writer: Writer) -> None:
    job_id = deduplicating(engine, 10, {1: 0, 2: 0, 7: 0})
    writer.items.write({job_id: [outcome(0)]})
    writer.write_due(job_id, 5, 10)
    assert [row.item_index for row in item_table(engine, job_id)] == [0, 7]


def test_search_for_copies_waits_for_no_lock(engine: sa.Engine, writer: Writer) -> None:
    job_id = deduplicating(engine, 6, {3: 0})
    with engine.begin() as rival:
        rival.execute(sa.select(job_counters.c.job_id).with_for_update())
        assert run_all(writer.copies.copy_steps({job_id: [outcome(1)]}, [job_id]), NEVER)
        writer.write_due(job_id, 0, 6)


def test_copies_of_a_failure_get_its_code_and_a_dead_letter_each(
    engine: sa.Engine, writer: Writer
) -> None:
    job_id = deduplicating(engine, 6, {3: 0, 4: 0, 5: 1})
    writer.write(job_id, failed(0), outcome(1, custom_id="a\0b"), outcome(2))

    rows = item_table(engine, job_id)
    assert [Outcome(row.outcome).label for row in rows] == [
        "failed", "failed", "succeeded", "failed", "failed", "failed",
    ]  # fmt: skip
    assert rows[3].status_code == rows[0].status_code
    assert rows[3].body == rows[0].body
    assert (rows[5].error_code, rows[5].custom_id) == (UNSTORABLE_CODE, "request-5")
    assert sorted(scalars(engine, sa.select(dead_items.c.item_index))) == [0, 1, 3, 4, 5]
    assert ledger(engine, job_id)["item_count"] == 2  # the failure was answered
    assert_complete(engine, job_id, copied=3)


def test_copies_wait_while_their_original_is_retried(engine: sa.Engine, writer: Writer) -> None:
    job_id = deduplicating(engine, 3, {1: 0, 2: 0})
    writer.write(job_id, failed(0, retryable=True, status_code=500))
    assert item_table(engine, job_id) == []
    writer.write(job_id, outcome(0, attempt=2))

    assert job(engine, job_id)["state"] == "finalizing"
    assert_complete(engine, job_id, copied=2)


def test_close_ends_copies_of_open_originals(engine: sa.Engine, writer: Writer) -> None:
    job_id = deduplicating(engine, 8, {3: 0, 4: 0, 5: 1, 6: 1})
    writer.write(job_id, outcome(0))
    assert close(engine, job_id, CloseReason.EXPIRED, slice_items=10)
    writer.write(job_id, outcome(1))
    writer.write_due(job_id, 0, 8)

    outcomes = [Outcome(row.outcome) for row in item_table(engine, job_id)]
    assert [n for n, kind in enumerate(outcomes) if kind is Outcome.SUCCEEDED] == [0, 3, 4]
    assert outcomes.count(Outcome.EXPIRED) == 5
    assert_complete(engine, job_id, copied=2)


def test_failed_copies_count_against_the_budget(engine: sa.Engine, writer: Writer) -> None:
    failing = deduplicating(engine, 9, {3: 0, 4: 0, 5: 0}, max_failed_items=3)
    writer.write(failing, failed(0))
    assert job(engine, failing)["close_reason"] == "failure_budget"

    cheap = deduplicating(engine, 9, dict.fromkeys(range(1, 8), 0), max_total_tokens=17)
    writer.write(cheap, outcome(0, input_tokens=8, output_tokens=8))
    assert job(engine, cheap)["close_reason"] is None
    writer.write(cheap, outcome(8, input_tokens=1, output_tokens=0))
    assert counters(engine, cheap)["succeeded"] == 9
    assert_complete(engine, cheap, copied=7)


def test_executed_copy_keeps_its_own_result(engine: sa.Engine, writer: Writer) -> None:
    job_id = deduplicating(engine, 3, {1: 0, 2: 0})
    writer.write(job_id, outcome(1))
    writer.write(job_id, outcome(0))

    assert [row.copied_from for row in item_table(engine, job_id)] == [None, None, 0]
    assert ledger(engine, job_id)["item_count"] == 2
    assert_complete(engine, job_id, copied=1)


def test_bodies_bound_a_transaction_of_copies(engine: sa.Engine, writer: Writer) -> None:
    job_id = deduplicating(engine, 12, dict.fromkeys(range(1, 12), 0))
    writer.copies = CopyWriter(engine, slice_bytes=1000)
    writer.write(job_id, outcome(0, body=b'"' + b"x" * 400 + b'"'))

    parts = scalars(engine, sa.select(usage_ledger.c.copied_count))
    assert (max(parts), sum(parts)) == (2, 11)
    counted = counters(engine, job_id)
    assert (counted["succeeded"], counted["copied"]) == (12, 11)
