"""Goal: calls are billed once while revision 0027 moves their table, by writers old and new."""

import threading
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from uuid import UUID

import pytest
import sqlalchemy as sa
from alembic import command

from core.ids import new_uuid
from migrations.runner import alembic_config, upgrade
from results.retention.day_removal import drop_old_bills
from results.tables import billed_calls
from results.writer.call_billing import CallBill, write_bills
from results.writer.day_partitions import DayPartitions
from storage.postgres.engines import DATABASE_UNAVAILABLE, raw_cursor
from tests.support.until import until

BEFORE: Final = "0026"

OLD_BILL: Final = """
WITH new AS (
    INSERT INTO billed_calls (request_id, tenant_id, model, model_version, outcome, input_tokens,
        output_tokens, cached_tokens, reasoning_tokens)
    SELECT id, id, 'small', '1', 1, 3, 5, 0, 0 FROM unnest(%b::uuid[]) AS calls (id) ORDER BY id
    ON CONFLICT DO NOTHING
    RETURNING tenant_id, model, model_version, input_tokens, output_tokens
), billed AS (
    INSERT INTO usage_ledger (tenant_id, job_id, model, model_version, item_count,
        input_tokens, output_tokens, cached_tokens, reasoning_tokens)
    SELECT tenant_id, %b::uuid, model, model_version, 1, 3, 5, 0, 0 FROM new
)
SELECT count(*) FROM new
"""
"""As the writers of the release before bill calls."""

OLD_FORGET: Final = """
DELETE FROM billed_calls WHERE request_id IN (
    SELECT request_id FROM billed_calls WHERE billed_at < now() - make_interval(days => 45)
    ORDER BY billed_at LIMIT 100 FOR UPDATE SKIP LOCKED
)
"""


def bill_as_before(engine: sa.Engine, calls: Sequence[UUID]) -> None:
    with engine.begin() as connection:
        cursor = raw_cursor(connection)
        cursor.execute(OLD_BILL, [list(calls), UUID(int=0)])
        cursor.execute(OLD_FORGET)


def bill_now(engine: sa.Engine, calls: Sequence[UUID], day: int) -> None:
    bills = [CallBill(day, call, call, "small", "1", 1, 3, 5, 0, 0) for call in calls]
    write_bills(engine, DayPartitions(engine, billed_calls), bills)


def billed(engine: sa.Engine) -> dict[UUID, int]:
    """How often each call is on the ledger; a call has a tenant of its own here."""
    query = sa.text("SELECT tenant_id, sum(item_count) FROM usage_ledger GROUP BY 1")
    with engine.connect() as connection:
        return {row[0]: int(row[1]) for row in connection.execute(query)}


def scalar(engine: sa.Engine, query: str) -> Any:
    with engine.connect() as connection:
        return connection.scalar(sa.text(query))


def execute(engine: sa.Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(sa.text(statement))


def today(engine: sa.Engine) -> int:
    return int(scalar(engine, "SELECT (now() AT TIME ZONE 'UTC')::date - DATE '1970-01-01'"))


def go_back(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        command.downgrade(alembic_config(connection), BEFORE)
        connection.commit()


@pytest.fixture
def old(engine: sa.Engine) -> sa.Engine:
    """The database as the release before has it."""
    go_back(engine)
    return engine


def test_writers_of_both_releases_bill_each_call_once(old: sa.Engine, database_url: str) -> None:
    calls = [new_uuid() for _ in range(50)]
    bill_as_before(old, calls)
    during: list[UUID] = []
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            call = new_uuid()
            bill_as_before(old, [call, *calls[:3]])
            during.append(call)

    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(write)
        try:
            until(lambda: len(during) > 10 or writing.done())
            upgrade(database_url)
            behind = len(during)
            until(lambda: len(during) > behind + 10 or writing.done())
        finally:
            stop.set()
        writing.result(20)

    later, day = [new_uuid() for _ in range(5)], today(old)
    bill_now(old, [*calls, *during, *later], day)
    bill_as_before(old, [*calls, *during, *later])
    bill_now(old, [*calls, *during, *later], day)
    assert billed(old) == dict.fromkeys([*calls, *during, *later], 1)
    assert scalar(old, "SELECT count(*) FROM billed_calls") == len(billed(old))


def test_a_writer_of_the_release_before_is_refused_once_days_have_partitions(
    engine: sa.Engine,
) -> None:
    """It retries and ends: it would bill again what lies in the partition of a day."""
    call = new_uuid()
    bill_now(engine, [call], today(engine) + 7)
    assert scalar(engine, "SELECT count(*) FROM pg_partition_tree('billed_calls')") == 3
    old_part = scalar(engine, "SELECT relid::text FROM pg_partition_tree('billed_calls')"
        " WHERE relid::text ~ 'before'")  # fmt: skip
    execute(
        engine,
        f"DROP TRIGGER refuse_undated_bills ON {old_part}",
        f"CREATE TRIGGER refuse_undated_bills BEFORE INSERT ON {old_part} FOR EACH ROW WHEN "
        "(NEW.request_day = -1) EXECUTE FUNCTION refuse_undated_bills(0)",
    )
    with pytest.raises(DATABASE_UNAVAILABLE, match="of a release before 0027 runs"):
        bill_as_before(engine, [call])
    bill_now(engine, [call], today(engine) + 7)
    assert billed(engine) == {call: 1}


def test_the_rows_before_are_dropped_whole_and_downgrade_keeps_the_others(
    old: sa.Engine, database_url: str
) -> None:
    bill_as_before(old, [new_uuid()])
    upgrade(database_url)
    call, later = new_uuid(), new_uuid()
    bill_now(old, [call], today(old))
    bill_now(old, [later], today(old) + 8)
    assert drop_old_bills(old) == 0
    assert scalar(old, "SELECT count(*) FROM billed_calls") == 3

    go_back(old)
    bill_as_before(old, [call, later])
    assert set(billed(old).values()) == {1}
    upgrade(database_url)
    bill_now(old, [call, later], today(old))
    assert set(billed(old).values()) == {1}


@pytest.fixture
def user(postgres_url: str, old: sa.Engine) -> Iterator[str]:
    """A user of a process, with its rights on the table of the release before."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    execute(old, f"CREATE ROLE {name}", f"GRANT SELECT, INSERT ON billed_calls TO {name}")
    yield name
    execute(old, f"DROP OWNED BY {name}", f"DROP ROLE {name}")


def test_users_keep_their_rights(old: sa.Engine, user: str, database_url: str) -> None:
    """A writer of the release before goes on before the rights are granted again."""

    def rights() -> list[bool]:
        names = ("SELECT", "INSERT", "DELETE")
        query = "SELECT has_table_privilege('{}', 'billed_calls', '{}')"
        return [scalar(old, query.format(user, name)) for name in names]

    assert rights() == [True, True, False]
    upgrade(database_url)
    assert rights() == [True, True, False]
    go_back(old)
    assert rights() == [True, True, False]
