"""Goal: a day's partition exists before its first row, also with concurrent creators."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import sqlalchemy as sa

from results.writer.day_partitions import DayPartitions, partition_name
from tests.integration.results.outcomes import execute, new_engine, outcome, scalars, settle

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
            barrier.wait(10)
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
