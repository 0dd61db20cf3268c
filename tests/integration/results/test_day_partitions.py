"""Goal: a day's partition exists before its first row; frequent queries open those of their days.

Method of the plans: a month of items; the statements of each function are explained as executed.
"""

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final
from uuid import UUID

import pytest
import sqlalchemy as sa

from batcher.inbound.redelivered_items import FinishedItemLookup
from core.clock import SystemClock
from core.object_names import answer_prefix
from jobs.store.single_requests import find_request
from jobs.tables.retries import dead_items
from results.finaliser.request_finaliser import unreferenced_answers
from results.retention.expired_data import old_requests
from results.views.dead_letter_queries import (
    DeadLetterPosition,
    find_dead_letter,
    list_dead_letters,
)
from results.writer.day_partitions import DayPartitions, partition_name
from tests.integration.jobs.rows import add_job, add_tenant
from tests.integration.results.outcomes import (
    execute,
    job_ref,
    new_engine,
    outcome,
    scalars,
    settle,
)
from tests.unit.batcher import builders

DAY = 20_000  # 2024-10-04


def attached(engine: sa.Engine) -> list[str]:
    query = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'items'::regclass"
    return sorted(scalars(engine, sa.text(query)))


def test_each_day_gets_a_partition_with_key_and_constraint(engine: sa.Engine) -> None:
    partitions = DayPartitions(engine)

    partitions.ensure([DAY, DAY + 1])
    partitions.ensure([DAY])

    assert attached(engine) == ["items_20241004", "items_20241005"]
    assert partition_name(DAY) == "items_20241004"
    inspector = sa.inspect(engine)
    key = inspector.get_pk_constraint("items_20241004")["constrained_columns"]
    assert key == ["job_day", "job_id", "item_index"]
    checks = {check["name"] for check in inspector.get_check_constraints("items_20241004")}
    assert "ck_items_outcome_known" in checks


def test_concurrent_writers_create_one_partition(database_url: str) -> None:
    engines = [new_engine(database_url) for _ in range(4)]
    barrier = threading.Barrier(len(engines))

    def race(engine: sa.Engine) -> None:
        partitions = DayPartitions(engine)
        for day in range(DAY, DAY + 5):
            barrier.wait(40)
            partitions.ensure([day])

    with ThreadPoolExecutor(len(engines)) as threads:
        list(threads.map(race, engines))

    assert len(attached(engines[0])) == 5
    for engine in engines:
        engine.dispose()


def test_partition_is_the_utc_day_of_creation(engine: sa.Engine) -> None:
    late = datetime(2024, 10, 4, 23, 59, tzinfo=UTC)
    execute(engine, sa.text("SET timezone = 'Asia/Tokyo'"))
    settle(engine, outcome(0), created_at=late)

    assert attached(engine) == ["items_20241004"]


def test_open_read_transaction_does_not_block_a_writer(engine: sa.Engine) -> None:
    with engine.begin() as reader:
        reader.execute(sa.text("SELECT count(*) FROM items"))

        DayPartitions(engine).ensure([DAY])

    assert attached(engine) == ["items_20241004"]


DAYS: Final = 30
ITEMS_OF_A_DAY: Final = 1000
FIRST_DAY: Final = 20_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

FILL: Final = """
INSERT INTO items (job_id, job_day, item_index, outcome, status_code, attempt, input_tokens,
    output_tokens, cached_tokens, reasoning_tokens)
SELECT md5(job_day || '/' || n)::uuid, job_day, 0, 1, 200, 1, 1, 1, 0, 0
FROM generate_series(:first, :last) job_day, generate_series(1, :count) n
"""


@pytest.fixture
def tenant_id(engine: sa.Engine) -> UUID:
    DayPartitions(engine).ensure(range(FIRST_DAY, FIRST_DAY + DAYS))
    with engine.begin() as connection:
        last = FIRST_DAY + DAYS - 1
        fill = sa.text(FILL).bindparams(first=FIRST_DAY, last=last, count=ITEMS_OF_A_DAY)
        connection.execute(fill)
        return add_tenant(connection)


def add_request(connection: sa.Connection, tenant_id: UUID, day: int) -> UUID:
    created_at = _EPOCH + timedelta(days=day, hours=1)
    ended: dict[str, Any] = {"state": "completed", "completed_at": created_at, "total_count": 1}
    return add_job(
        connection, tenant_id, kind="request", input_file_id=None, created_at=created_at, **ended
    )


def opened(engine: sa.Engine, read: Callable[[sa.Connection], object]) -> set[str]:
    """Return the partitions of `items` that the plans of `read` name; each is read by index."""
    executed: list[tuple[str, Any]] = []

    def record(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        executed.append((statement, parameters))

    with engine.connect() as connection:
        connection.execute(sa.text("ANALYZE items, jobs"))
        sa.event.listen(engine, "before_cursor_execute", record)
        read(connection)
        sa.event.remove(engine, "before_cursor_execute", record)
        plans = [
            "\n".join(connection.exec_driver_sql(f"EXPLAIN {statement}", parameters).scalars())
            for statement, parameters in executed
        ]
    assert any("items_" in plan for plan in plans), plans
    assert not any("Seq Scan on items" in plan for plan in plans)
    return {name for plan in plans for name in re.findall(r"on (items_\d{8})", plan)}


def test_a_request_is_read_from_the_partition_of_its_day(
    engine: sa.Engine, tenant_id: UUID
) -> None:
    with engine.begin() as connection:
        ids = [add_request(connection, tenant_id, FIRST_DAY + i) for i in (3, 9)]
    of_days = [partition_name(FIRST_DAY + i) for i in (3, 9)]
    for job_id, of_day in zip(ids, of_days, strict=True):
        find = partial(find_request, tenant_id=tenant_id, job_id=job_id)
        assert opened(engine, find) == {of_day}
    assert opened(engine, lambda c: old_requests(c, days=1)) == {*of_days}
    keys = [f"{answer_prefix(job_id)}large" for job_id in ids]
    assert opened(engine, lambda c: unreferenced_answers(c, keys)) == {*of_days}


def test_redelivered_chunks_are_looked_up_in_the_partitions_of_their_days(
    engine: sa.Engine, tenant_id: UUID
) -> None:
    lookup = FinishedItemLookup(engine, SystemClock())
    chunks = [builders.buffered(job_ref(tenant_id, FIRST_DAY + i), range(9)) for i in (4, 8, 8)]
    found = opened(engine, lambda _: lookup(chunks))
    assert found == {partition_name(FIRST_DAY + i) for i in (4, 8)}


def test_dead_letters_are_listed_from_the_partitions_of_their_page(
    engine: sa.Engine, tenant_id: UUID
) -> None:
    with engine.begin() as connection:
        ids = [add_request(connection, tenant_id, FIRST_DAY + i) for i in range(5)]
    rows = [
        {"job_id": job_id, "item_index": 0, "tenant_id": tenant_id, "job_day": FIRST_DAY + i,
         "attempt": 1, "line_offset": 0, "failed_at": _EPOCH + timedelta(days=FIRST_DAY + i)}
        for i, job_id in enumerate(ids)
    ]  # fmt: skip
    execute(engine, dead_items.insert().values(rows))
    listed = opened(
        engine, lambda c: list_dead_letters(c, tenant_id, job_id=None, after=None, limit=2)
    )
    assert listed == {partition_name(FIRST_DAY + i) for i in (2, 3, 4)}  # one more than shown
    place = DeadLetterPosition(ids[1], 0)
    shown = opened(engine, lambda c: find_dead_letter(c, tenant_id, place))
    assert shown == {partition_name(FIRST_DAY + 1)}
