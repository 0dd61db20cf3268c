"""Goal: redelivery in any order gives the rows, counters and ledger of a single delivery."""

import time
from collections import Counter
from typing import Any

import msgspec
import psycopg
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.ids import new_uuid
from core.outcomes import Outcome
from results import metrics
from results.writer.day_partitions import DayPartitions
from results.writer.item_writer import UNSTORABLE_CODE, ItemWriter
from storage.postgres.items import items as item_rows
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
from topics.records.records import ItemOutcome


@pytest.fixture
def writer(engine: sa.Engine) -> ItemWriter:
    return ItemWriter(engine, DayPartitions(engine))


def test_row_has_the_fields_of_its_outcome(engine: sa.Engine, writer: ItemWriter) -> None:
    job_id = add_running_job(engine, 3)
    said = outcome(1, custom_id='näme "quoted"', cached_tokens=1, reasoning_tokens=2, attempt=3)
    large = outcome(2, body=b"", body_key="bodies/large")
    ours = failed(0, status_code=0, body=b"", error_code="slow", error_message="cut\0off")

    writer.write({job_id: [said, large, msgspec.structs.replace(ours, custom_id=None)]})
    writer.write({job_id: [said, large, ours]})

    ours_row, row, large_row = item_table(engine, job_id)
    assert (row.custom_id, row.body, row.status_code) == ('näme "quoted"', b'{"answer":1}', 200)
    assert (row.attempt, row.cached_tokens, row.reasoning_tokens) == (3, 1, 2)
    assert (row.outcome, row.error_code, row.error_message) == (Outcome.SUCCEEDED, None, None)
    assert (large_row.body, large_row.body_key) == (None, "bodies/large")
    assert (ours_row.custom_id, ours_row.body, ours_row.status_code) == (None, None, 0)
    assert (ours_row.error_code, ours_row.error_message) == ("slow", "cutoff")


def test_last_row_settles_the_job_once(engine: sa.Engine, writer: ItemWriter) -> None:
    job_id = add_running_job(engine, 2)

    writer.write({job_id: [outcome(0)]})
    assert job(engine, job_id)["settled_at"] is None
    writer.write({job_id: [failed(1)]})
    settled = job(engine, job_id)
    writer.write({job_id: [outcome(0), failed(1)]})

    assert settled["state"] == "finalizing"
    assert settled["settled_at"] == settled["finalizing_at"] is not None
    assert job(engine, job_id) == settled
    assert event_count(engine) == 1
    assert_totals_agree(engine, job_id)


@pytest.mark.parametrize(
    ("columns", "woken"),
    [
        ({"kind": "batch"}, "millrace_jobs"),
        ({"kind": "request", "input_file_id": None}, "millrace_requests"),
    ],
)
def test_settled_job_notifies_the_channel_of_its_kind(
    engine: sa.Engine, writer: ItemWriter, columns: dict[str, Any], woken: str
) -> None:
    job_id = add_running_job(engine, 1, **columns)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        for channel in ("millrace_jobs", "millrace_requests", "that_is_all"):
            driver.execute(f"LISTEN {channel}")

        writer.write({job_id: [outcome(0)]})
        driver.execute("NOTIFY that_is_all")

        heard = [found.channel for found in driver.notifies(timeout=40, stop_after=2)]
    assert heard == [woken, "that_is_all"]


def test_cancelling_job_settles_in_its_state(engine: sa.Engine, writer: ItemWriter) -> None:
    job_id = add_running_job(engine, 1, state="cancelling", close_reason="cancelled")

    writer.write({job_id: [outcome(0)]})

    settled = job(engine, job_id)
    assert settled["state"] == "cancelling"
    assert settled["settled_at"] is not None
    assert settled["finalizing_at"] is None
    assert event_count(engine) == 0


def test_first_of_several_outcomes_wins(engine: sa.Engine, writer: ItemWriter) -> None:
    job_id = add_running_job(engine, 2)

    writer.write({job_id: [outcome(0, body=b"1"), failed(0), outcome(1), outcome(0, body=b"3")]})

    assert [row.body for row in item_table(engine, job_id)] == [b"1", b'{"answer":1}']
    assert ledger(engine, job_id)["item_count"] == 2


def test_items_without_cost_are_not_billed(engine: sa.Engine, writer: ItemWriter) -> None:
    job_id = add_running_job(engine, 5)
    aborted = {"status_code": 0, "body": b"", "input_tokens": 7, "output_tokens": 7}

    outcomes = [
        outcome(0, outcome=Outcome.CANCELLED, **aborted),
        outcome(1, outcome=Outcome.EXPIRED, **aborted),
        failed(2, status_code=0, error_code="record_unreadable"),
        failed(3, input_tokens=11),
        outcome(4),
    ]
    writer.write({job_id: outcomes})

    billed = {"item_count": 2, "input_tokens": 14, "output_tokens": 5}
    assert ledger(engine, job_id) == billed | {"cached_tokens": 0, "reasoning_tokens": 0}
    counted = counters(engine, job_id)
    assert [counted[kind.label] for kind in Outcome] == [1, 2, 1, 1]
    assert_totals_agree(engine, job_id)


def test_rows_have_the_times_of_stages_within_their_columns(
    engine: sa.Engine, writer: ItemWriter
) -> None:
    job_id = add_running_job(engine, 4)
    times = {"queue_ms": 1, "batch_wait_ms": 2, "execution_ms": 3}
    tomorrow_ms = int(1000 * time.time()) + 86_400_000
    outcomes = [outcome(0), outcome(1, **times, ended_ms=1), outcome(2, ended_ms=tomorrow_ms)]
    writer.write({job_id: outcomes})

    names = ("queue_ms", "batch_wait_ms", "execution_ms", "result_ms")
    query = sa.select(*(item_rows.c[name] for name in names)).where(item_rows.c.job_id == job_id)
    with engine.connect() as connection:
        rows = [tuple(row) for row in connection.execute(query.order_by(item_rows.c.item_index))]
    assert rows == [(None,) * 4, (1, 2, 3, 2**31 - 1), (0, 0, 0, 0)]


def test_outcomes_of_unknown_jobs_and_items_are_dropped(
    engine: sa.Engine, writer: ItemWriter
) -> None:
    job_id, validating = add_running_job(engine, 2), add_running_job(engine, None)
    before = metrics.UNKNOWN_JOB._value.get()

    writer.write(
        {new_uuid(): [outcome(0)], validating: [outcome(0)], job_id: [outcome(2), outcome(1)]}
    )

    assert [row.item_index for row in item_table(engine, job_id)] == [1]
    assert item_table(engine, validating) == []
    assert metrics.UNKNOWN_JOB._value.get() == before + 3


@pytest.mark.parametrize(
    "poison",
    [
        {"body": b"x", "error_code": "a\0b"},
        {"custom_id": "a\0b"},
        {"status_code": 70_000},
        {"input_tokens": 2**31},
        {"output_tokens": -1},
    ],
)
def test_refused_outcome_fails_alone(
    engine: sa.Engine, writer: ItemWriter, poison: dict[str, object]
) -> None:
    job_id, other_id = add_running_job(engine, 40), add_running_job(engine, 1)
    items = [outcome(index) for index in range(40)]
    items[23] = outcome(23, **poison)

    writer.write({job_id: items, other_id: [outcome(0)]})
    writer.write({job_id: items})  # the same again changes nothing

    rows = item_table(engine, job_id)
    assert Counter(row.outcome for row in rows) == {Outcome.SUCCEEDED: 39, Outcome.FAILED: 1}
    assert (rows[23].error_code, rows[23].body) == (UNSTORABLE_CODE, None)
    assert job(engine, job_id)["state"] == job(engine, other_id)["state"] == "finalizing"
    assert ledger(engine, job_id)["item_count"] == 39
    assert_totals_agree(engine, job_id)


TOTAL = 12

outcomes = st.builds(
    outcome,
    st.integers(0, TOTAL - 1),
    outcome=st.sampled_from([Outcome.SUCCEEDED, Outcome.FAILED, Outcome.EXPIRED]),
    status_code=st.sampled_from([0, 200, 500]),
    input_tokens=st.integers(0, 5),
    output_tokens=st.integers(0, 5),
    custom_id=st.text(max_size=3),  # a NUL among them is refused, which must change nothing else
)
log = st.lists(st.tuples(st.integers(0, 1), st.lists(outcomes, max_size=6)), max_size=8)


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(records=log, data=st.data())
def test_redelivery_changes_nothing(
    engine: sa.Engine, records: list[tuple[int, list[ItemOutcome]]], data: st.DataObject
) -> None:
    """Each writer starts again somewhere before the end of the previous one."""
    job_ids = [add_running_job(engine, TOTAL) for _ in range(2)]
    first: list[dict[int, ItemOutcome]] = [{}, {}]
    for which, items in records:
        for item in items:
            first[which].setdefault(item.index, item)

    partitions = DayPartitions(engine)
    end = 0
    while end < len(records):
        start = data.draw(st.integers(0, end))
        end = data.draw(st.integers(end + 1, len(records)))
        writer = ItemWriter(engine, partitions)
        for group_start in range(start, end, 2):
            group: dict[object, list[ItemOutcome]] = {}
            for which, items in records[group_start : min(group_start + 2, end)]:
                if items:
                    group.setdefault(job_ids[which], []).extend(items)
            writer.write(group)  # type: ignore[arg-type]

    for which, job_id in enumerate(job_ids):
        rows = {row.item_index: row for row in item_table(engine, job_id)}
        assert rows.keys() == first[which].keys()
        for index, item in first[which].items():
            if item.custom_id is not None and "\0" in item.custom_id:
                assert rows[index].error_code == UNSTORABLE_CODE
            else:
                assert rows[index].custom_id == item.custom_id
                assert rows[index].outcome == item.outcome
        assert_totals_agree(engine, job_id)
        is_settled = job(engine, job_id)["settled_at"] is not None
        assert is_settled == (len(rows) == TOTAL)
