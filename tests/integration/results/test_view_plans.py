"""Goal: reading part of a large job touches few rows, whatever the planner estimates."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from jobs.store.days import job_day
from results.views.item_status import ItemQuery, ItemStatus, read_items
from results.views.sequenced_lines import READ_SEQUENCE, read_sequence, sequence_of
from results.writer.day_partitions import DayPartitions
from results.writer.item_writer import ItemWriter
from storage.postgres.engines import raw_cursor
from storage.postgres.tenant_isolation import restrict_to_tenant
from tests.integration.results.outcomes import add_running_job, failed, job, outcome, settle

TOTAL, SLICE = 20_000, 2000


@pytest.fixture(params=["unknown", "analyzed"])
def large(engine: sa.Engine, request: pytest.FixtureRequest) -> tuple[UUID, int]:
    """One of three complete jobs of a day, with unordered slices."""
    partitions = DayPartitions(engine)
    ids = [add_running_job(engine, TOTAL, state="in_progress") for _ in range(3)]
    for first in reversed(range(0, TOTAL, SLICE)):
        outcomes = [
            failed(index) if index % 5000 == 0 else outcome(index)
            for index in range(first, first + SLICE)
        ]
        ItemWriter(engine, partitions).write(dict.fromkeys(ids, outcomes))
    if request.param == "analyzed":
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(sa.text("ANALYZE"))
    return ids[1], job_day(job(engine, ids[1])["created_at"])


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every node of a plan."""
    return [plan, *(node for below in plan.get("Plans", ()) for node in nodes(below))]


@contextmanager
def as_the_api(engine: sa.Engine, job_id: UUID) -> Iterator[sa.Connection]:
    """A transaction for the owner of a job."""
    tenant_id: UUID = job(engine, job_id)["tenant_id"]
    with engine.connect() as connection:
        restrict_to_tenant(connection, tenant_id)
        yield connection


def test_page_of_the_sequence_reads_only_its_rows(
    engine: sa.Engine, large: tuple[UUID, int]
) -> None:
    job_id, day = large
    after = 13_000
    parameters = [after, after, job_id, job_id, after, 200, day, job_id, 256 * 1024, job_id]
    with as_the_api(engine, job_id) as connection:
        cursor = raw_cursor(connection)
        explain = f"EXPLAIN (ANALYZE, FORMAT JSON) {READ_SEQUENCE}"
        cursor.execute(explain.encode(), parameters, prepare=False)
        ((((top,)),),) = [cursor.fetchone()]  # type: ignore[misc]
        page = read_sequence(connection, large, after=after, limit=200, bytes_max=256 * 1024)

    assert [row.sequence for row in page] == list(range(13_001, 13_201))
    assert [row.row.item_index for row in page] == list(range(7000, 7200))
    found = nodes(top["Plan"])
    tables = [node for node in found if "items" in node.get("Relation Name", "")]
    assert tables
    assert all("Index" in node["Node Type"] for node in tables)
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in tables) == 200
    slices = [node for node in found if node.get("Relation Name") == "job_slices"]
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in slices) <= 8


def test_bodies_bound_a_page_of_results(engine: sa.Engine) -> None:
    job_id = settle(engine, *[outcome(index, body=b"x" * 10_000) for index in range(100)])
    large = (job_id, job_day(job(engine, job_id)["created_at"]))
    with engine.connect() as connection:
        pages = [
            [row.sequence for row in read_sequence(connection, large, **asked)]
            for asked in (
                {"after": 0, "limit": 50, "bytes_max": 25_000},
                {"after": 3, "limit": 2, "bytes_max": 25_000},
                {"after": 99, "limit": 9, "bytes_max": 1},
                {"after": 100, "limit": 9, "bytes_max": 1},
            )
        ]
    assert pages == [[1, 2, 3], [4, 5], [100], []]


def test_item_status_reads_a_bounded_window(engine: sa.Engine, large: tuple[UUID, int]) -> None:
    first = [4000, 4001, 4002]
    wanted = {None: first, ItemStatus.SUCCEEDED: first, ItemStatus.FAILED: [5000, 10_000]}
    with as_the_api(engine, large[0]) as connection:
        connection.execute(sa.text("SET LOCAL statement_timeout = '20s'"))
        assert sequence_of(connection, large[0], 0) == TOTAL - SLICE + 1
        assert sequence_of(connection, large[0], TOTAL) is None
        for status in (None, *ItemStatus):
            query = ItemQuery(*large, TOTAL, first=4000, limit=3, status=status)
            page = read_items(connection, query, {})
            assert [item.index for item in page.items] == wanted.get(status, []), status
            assert page.has_more == (page.next_index < TOTAL)
