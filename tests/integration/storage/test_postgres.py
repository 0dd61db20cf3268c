"""Goal: timeouts, binary parameters and reconnection work with a real Postgres."""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg
import pytest
import sqlalchemy as sa
import sqlalchemy.exc

from migrations.runner import upgrade
from storage.postgres.engines import (
    DATABASE_UNAVAILABLE,
    TRUSTED_S,
    autocommit,
    create_engine,
    raw_cursor,
)
from storage.postgres.notifications import NotificationListener
from storage.postgres.settings import DatabaseSettings
from tests.conftest import execute, with_database
from tests.support.until import until

NewEngine = Callable[..., sa.Engine]
UNUSED_URL = "postgresql://postgres@127.0.0.1:1/postgres"  # nobody listens on port 1


def settings_for(url: str, **changes: object) -> DatabaseSettings:
    return DatabaseSettings.model_validate({"url": url, "pool_size": 2, **changes})


@pytest.fixture
def new_engine(postgres_url: str) -> Iterator[Callable[..., sa.Engine]]:
    """Return engines with changed settings; they are disposed of at the end."""
    with ExitStack() as closing:

        def create(url: str = postgres_url, *, name: str = "test", **changes: object) -> sa.Engine:
            engine = create_engine(settings_for(url, **changes), application_name=name)
            closing.callback(engine.dispose)
            return engine

        yield create


@pytest.fixture
def engine(new_engine: NewEngine) -> sa.Engine:
    return new_engine(name=f"test-{uuid.uuid4().hex}")


@pytest.fixture
def table(engine: sa.Engine) -> Iterator[str]:
    name = f"storage_{uuid.uuid4().hex}"
    with engine.begin() as connection:
        connection.execute(sa.text(f"CREATE TABLE {name} (id int PRIMARY KEY, body bytea)"))
    yield name
    with engine.begin() as connection:
        connection.execute(sa.text(f"DROP TABLE {name}"))


def terminate(engine: sa.Engine, application_name: str) -> int:
    """End the backends of that name; return their number."""
    with engine.begin() as connection:
        query = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
        query += "WHERE application_name = :name AND pid <> pg_backend_pid()"
        return int(connection.execute(sa.text(query), {"name": application_name}).scalar_one())


def sessions(engine: sa.Engine, application_name: str) -> int:
    """Return how many backends of that name there are."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = :name"
    with engine.connect() as connection:
        return int(connection.execute(sa.text(query), {"name": application_name}).scalar_one())


def run(connection: sa.Connection, statement: str, *, raw: bool) -> None:
    """Execute a statement with a driver's cursor or with SQLAlchemy."""
    if raw:
        raw_cursor(connection).execute(statement.encode())
    else:
        connection.execute(sa.text(statement))


def count_rows(engine: sa.Engine, table: str) -> int:
    with engine.connect() as connection:
        return int(connection.execute(sa.text(f"SELECT count(*) FROM {table}")).scalar_one())


def test_a_raw_cursor_takes_binary_arrays(engine: sa.Engine, table: str) -> None:
    ids, bodies = list(range(1000)), [bytes([n % 256]) * 10 for n in range(1000)]
    insert = f"INSERT INTO {table} SELECT * FROM UNNEST(%b::int[], %b::bytea[])"
    insert += " ON CONFLICT DO NOTHING RETURNING id"
    with engine.begin() as connection, raw_cursor(connection) as cursor:
        cursor.execute(insert, (ids, bodies))
        assert sorted(cursor.fetchall()) == [(n,) for n in ids]
        cursor.execute(insert, (ids, bodies))
        assert cursor.fetchall() == []
    with engine.begin() as connection, raw_cursor(connection) as cursor:
        cursor.execute(f"SELECT body FROM {table} WHERE id = %b", (7,))
        assert cursor.fetchone() == (b"\x07" * 10,)


def test_a_raw_cursor_shares_the_transaction(engine: sa.Engine, table: str) -> None:
    insert = f"INSERT INTO {table} VALUES (%b, NULL)"
    with engine.connect() as connection:
        raw_cursor(connection).execute(insert, (1,))  # never committed
    with engine.connect() as connection:
        raw_cursor(connection).execute(insert, (2,))
        connection.rollback()
    assert count_rows(engine, table) == 0
    with engine.connect() as connection:
        raw_cursor(connection).execute(insert, (3,))
        connection.commit()
    assert count_rows(engine, table) == 1


def test_a_long_statement_is_cancelled(new_engine: NewEngine) -> None:
    engine = new_engine(statement_timeout_s=2)
    for raw in (True, False):
        with pytest.raises(DATABASE_UNAVAILABLE), engine.begin() as connection:
            run(connection, "SELECT pg_sleep(30)", raw=raw)
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT 1")).scalar_one() == 1


def idle(engine: sa.Engine, name: str) -> None:
    """Wait until the server has ended the idle transaction of that name."""
    until(lambda: not sessions(engine, name), timeout_s=30)


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("lose", [idle, terminate])
def test_a_lost_transaction_is_unavailable_and_the_next_works(
    new_engine: NewEngine, engine: sa.Engine, lose: Callable[[sa.Engine, str], object], *, raw: bool
) -> None:
    name = f"test-{uuid.uuid4().hex}"
    victim = new_engine(name=name, pool_size=1, idle_transaction_timeout_s=2)

    def work_and_lose_the_session() -> None:
        with victim.begin() as connection:
            run(connection, "SELECT 1", raw=raw)
            lose(engine, name)
            run(connection, "SELECT 1", raw=raw)

    with pytest.raises(DATABASE_UNAVAILABLE):
        work_and_lose_the_session()
    with victim.begin() as connection:
        run(connection, "SELECT 1", raw=raw)


def test_a_commit_after_a_lost_session_is_unavailable(
    new_engine: NewEngine, engine: sa.Engine
) -> None:
    name = f"test-{uuid.uuid4().hex}"
    with new_engine(name=name, idle_transaction_timeout_s=2).connect() as connection:
        connection.execute(sa.text("SELECT 1"))
        idle(engine, name)
        with pytest.raises(DATABASE_UNAVAILABLE):
            connection.commit()


def test_a_wait_for_a_lock_times_out(new_engine: NewEngine, engine: sa.Engine, table: str) -> None:
    impatient = new_engine(lock_timeout_s=0.1)
    with engine.begin() as holder:
        holder.execute(sa.text(f"LOCK TABLE {table}"))
        with pytest.raises(DATABASE_UNAVAILABLE), impatient.begin() as connection:
            connection.execute(sa.text(f"SELECT * FROM {table}"))


def test_a_session_has_its_name_and_timeouts(postgres_url: str, new_engine: NewEngine) -> None:
    url = sa.make_url(postgres_url).update_query_dict({"options": "-c work_mem=5MB"})
    engine = new_engine(
        url.render_as_string(hide_password=False),
        name="millrace-test",
        idle_transaction_timeout_s=7,
        statement_timeout_s=8,
    )
    expected = {
        "application_name": "millrace-test",
        "idle_in_transaction_session_timeout": "7s",
        "statement_timeout": "8s",
        "work_mem": "5MB",
    }
    with engine.connect() as connection:
        shown = {n: connection.execute(sa.text(f"SHOW {n}")).scalar_one() for n in expected}
    assert shown == expected


def test_the_pool_bounds_the_connections(new_engine: NewEngine) -> None:
    engine = new_engine(pool_size=1, pool_wait_s=0.1)
    with engine.connect(), pytest.raises(DATABASE_UNAVAILABLE):
        engine.connect()
    with pytest.raises(DATABASE_UNAVAILABLE):
        new_engine(UNUSED_URL).connect()


def test_an_idle_engine_survives_a_lost_backend(new_engine: NewEngine, engine: sa.Engine) -> None:
    name = f"test-{uuid.uuid4().hex}"
    victim = new_engine(name=name)
    with victim.connect() as one, victim.connect() as two:
        assert [c.execute(sa.text("SELECT 1")).scalar_one() for c in (one, two)] == [1, 1]
    assert terminate(engine, name) == 2
    time.sleep(2 * TRUSTED_S)
    with victim.connect() as connection:
        assert connection.execute(sa.text("SELECT 1")).scalar_one() == 1


def test_a_connection_in_use_a_moment_ago_is_not_tested(
    new_engine: NewEngine, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.postgres.engines.TRUSTED_S", 3600.0)
    name = f"test-{uuid.uuid4().hex}"
    victim = new_engine(name=name)
    with victim.connect() as one, victim.connect() as two:
        assert [c.execute(sa.text("SELECT 1")).scalar_one() for c in (one, two)] == [1, 1]
    assert terminate(engine, name) == 2
    with pytest.raises(DATABASE_UNAVAILABLE), victim.connect() as connection:
        connection.execute(sa.text("SELECT 1"))
    with victim.connect() as connection:  # the error has replaced the other one, too
        assert connection.execute(sa.text("SELECT 1")).scalar_one() == 1


def test_statements_commit_one_by_one(engine: sa.Engine, table: str) -> None:
    with autocommit(engine) as connection:
        connection.execute(sa.text(f"INSERT INTO {table} VALUES (1)"))
        assert count_rows(engine, table) == 1
    with engine.connect() as connection:  # the connection of the pool begins transactions again
        connection.execute(sa.text(f"INSERT INTO {table} VALUES (2)"))
        connection.rollback()
    assert count_rows(engine, table) == 1


@pytest.fixture
def read_only_url(postgres_url: str) -> Iterator[str]:
    """The URL of a database whose new sessions only read, as on a standby."""
    name = f"read_only_{uuid.uuid4().hex[:12]}"
    execute(postgres_url, f"CREATE DATABASE {name}")
    execute(postgres_url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    yield with_database(postgres_url, name)
    execute(postgres_url, f"DROP DATABASE {name} WITH (FORCE)")


def test_a_read_only_server_is_unavailable(read_only_url: str, new_engine: NewEngine) -> None:
    with pytest.raises(DATABASE_UNAVAILABLE, match="read-only"):
        new_engine(read_only_url).connect()
    with NotificationListener(settings_for(read_only_url), "any") as waiting:
        assert not waiting.wait(0.2)
    with pytest.raises(DATABASE_UNAVAILABLE, match="read-only"):
        upgrade(read_only_url)


@pytest.mark.parametrize("raw", [True, False])
def test_a_write_to_a_read_only_server_is_unavailable(
    engine: sa.Engine, table: str, *, raw: bool
) -> None:
    insert = f"INSERT INTO {table} VALUES (1, NULL)"
    with engine.connect() as connection:
        connection.execute(sa.text("SET TRANSACTION READ ONLY"))
        with pytest.raises(DATABASE_UNAVAILABLE):
            run(connection, insert, raw=raw)


def test_a_session_that_became_read_only_is_replaced(engine: sa.Engine, table: str) -> None:
    with engine.begin() as connection:
        first = connection.scalar(sa.text("SELECT pg_backend_pid()"))
        connection.execute(sa.text("SET default_transaction_read_only = on"))
    with engine.begin() as connection:
        assert connection.scalar(sa.text("SELECT pg_backend_pid()")) != first
        connection.execute(sa.text(f"INSERT INTO {table} VALUES (1, NULL)"))


@pytest.mark.parametrize("statement", ["SELEC 1", "SELECT 1/0", "SELECT 'x'::int"])
def test_a_rejected_statement_is_not_unavailable(engine: sa.Engine, statement: str) -> None:
    with engine.connect() as connection:
        with pytest.raises(sqlalchemy.exc.DBAPIError) as refused:
            connection.execute(sa.text(statement))
        assert not isinstance(refused.value, DATABASE_UNAVAILABLE)
        connection.rollback()
        with pytest.raises(psycopg.Error) as raw:
            raw_cursor(connection).execute(statement.encode())
        assert not isinstance(raw.value, DATABASE_UNAVAILABLE)


@pytest.fixture
def channel() -> str:
    return f"Channel-{uuid.uuid4().hex}"  # needs quotes


@pytest.fixture
def notifications(postgres_url: str, channel: str) -> Iterator[NotificationListener]:
    with NotificationListener(
        settings_for(postgres_url), channel, application_name=channel
    ) as waiting:
        assert waiting.wait(20)  # the first connection
        yield waiting


def notify(engine: sa.Engine, channel: str) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text("SELECT pg_notify(:channel, '')"), {"channel": channel})


def in_background(work: Callable[[], object], after_s: float) -> threading.Timer:
    timer = threading.Timer(after_s, work)
    timer.start()
    return timer


def test_a_notification_ends_the_wait(
    notifications: NotificationListener, engine: sa.Engine, channel: str
) -> None:
    start = time.monotonic()
    assert not notifications.wait(0.3)
    assert time.monotonic() - start > 0.25
    assert not notifications.wait(0)
    timer = in_background(lambda: notify(engine, channel), 0.1)
    assert notifications.wait(40)
    assert time.monotonic() - start < 30
    timer.join()


def test_many_notifications_are_one(
    notifications: NotificationListener, engine: sa.Engine, channel: str
) -> None:
    burst = sa.text("SELECT pg_notify(:channel, n::text) FROM generate_series(1, 20) n")
    with engine.begin() as connection:
        connection.execute(burst, {"channel": channel})
    assert notifications.wait(20)
    notify(engine, "another")
    assert not notifications.wait(0.2)


def test_a_lost_listener_reconnects(
    notifications: NotificationListener, engine: sa.Engine, channel: str
) -> None:
    assert terminate(engine, channel) == 1
    assert notifications.wait(20)  # connected again: look, for something may have been missed
    assert not notifications.wait(0.2)
    notify(engine, channel)
    assert notifications.wait(20)


def test_a_close_ends_the_wait_of_another_thread(notifications: NotificationListener) -> None:
    timer = in_background(notifications.close, 0.1)
    start = time.monotonic()
    assert not notifications.wait(50)
    assert time.monotonic() - start < 30
    timer.join()
    notifications.close()
    assert not notifications.wait(0)


def test_waiting_for_an_absent_database_times_out() -> None:
    with NotificationListener(settings_for(UNUSED_URL), "any") as waiting:
        start = time.monotonic()
        assert not waiting.wait(0.2)
        assert 0.15 < time.monotonic() - start < 20
