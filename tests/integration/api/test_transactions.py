"""Goal: the connections of an api that ends are closed, those of running transactions too."""

import asyncio
import threading

import psycopg
import sqlalchemy as sa

from api.database import Database
from storage.postgres import create_engine
from storage.settings import DatabaseSettings
from tests.stacks import await_true


async def test_a_transaction_that_ends_after_the_close_leaves_no_connection(
    database_url: str,
) -> None:
    settings = DatabaseSettings.model_validate({"url": database_url})
    database = Database(create_engine(settings, application_name="test"), threads=1, timeout_s=10)
    begun, may_end = threading.Event(), threading.Event()
    used: list[psycopg.Connection] = []

    def work(connection: sa.Connection) -> bool:
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        used.append(driver)
        begun.set()
        return may_end.wait(10)

    running = asyncio.create_task(database.run_across_tenants(work))
    assert await asyncio.to_thread(begun.wait, 10)
    database.close()
    may_end.set()

    assert await running
    assert await asyncio.to_thread(await_true, lambda: used[0].closed, "the end of the connection")
