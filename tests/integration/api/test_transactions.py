"""Goal: slow transactions delay only their tenant.

The connections of a stopping API are closed, also those of running transactions.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from uuid import UUID

import psycopg
import pytest
import sqlalchemy as sa

from api.runtime.database import Database, DatabaseUnavailableError
from storage.postgres.engines import create_engine
from storage.postgres.settings import DatabaseSettings
from tests.conftest import execute
from tests.support.until import STEP_S_MAX, until


def new_database(url: str, threads: int = 1, timeout_s: float = 10) -> Database:
    settings = DatabaseSettings.model_validate({"url": url})
    engine = create_engine(settings, application_name="test")
    return Database(engine, threads=threads, timeout_s=timeout_s)


async def test_a_late_transaction_leaves_no_connection_open(database_url: str) -> None:
    database = new_database(database_url)
    begun, may_end = threading.Event(), threading.Event()
    used: list[psycopg.Connection] = []

    def work(connection: sa.Connection) -> bool:
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        used.append(driver)
        begun.set()
        return may_end.wait(10)

    running = asyncio.create_task(database.run_across_tenants(work))
    assert await asyncio.to_thread(begun.wait, 20)
    database.close()
    may_end.set()

    assert await running
    await asyncio.to_thread(until, lambda: used[0].closed, "the end of the connection", STEP_S_MAX)


async def test_hanging_transactions_delay_only_their_tenant(database_url: str) -> None:
    me, other = UUID(int=1), UUID(int=2)
    database = new_database(database_url, threads=8, timeout_s=0.5)
    may_end = threading.Event()
    count = 0

    def hang(_: sa.Connection) -> bool:
        nonlocal count
        count += 1
        return may_end.wait(10)

    def look(connection: sa.Connection) -> int:
        return connection.scalar(sa.text("SELECT 1")) or 0

    async def until_answered(answer: Callable[[], Awaitable[int]]) -> int:
        """A transaction that opens a connection may take longer than this database allows."""
        while True:
            with suppress(DatabaseUnavailableError):
                return await answer()

    try:
        mine = [asyncio.create_task(database.run_for_tenant(me, hang)) for _ in range(20)]
        given_up = await asyncio.gather(*mine, return_exceptions=True)
        assert {type(one) for one in given_up} == {DatabaseUnavailableError}
        assert await until_answered(lambda: database.run_for_tenant(other, look)) == 1
        assert await until_answered(lambda: database.run_across_tenants(look)) == 1
        assert await database.find_problem(10) is None
        with pytest.raises(DatabaseUnavailableError):  # its threads are taken though nobody waits
            await database.run_for_tenant(me, look)
        assert count == 4
        may_end.set()
        assert await until_answered(lambda: database.run_for_tenant(me, look)) == 1
        assert count == 4
    finally:
        may_end.set()
        database.close()


async def test_a_read_only_server_is_not_ready(database_url: str, postgres_url: str) -> None:
    name = sa.make_url(database_url).database
    execute(postgres_url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    database = new_database(database_url)
    try:
        assert await database.find_problem(10) == "database away"
        execute(postgres_url, f"ALTER DATABASE {name} RESET default_transaction_read_only")
        assert await database.find_problem(10) is None
    finally:
        database.close()
