"""Goal: timeouts, binary parameters and reconnection work with a real Postgres."""

import threading
import time
import uuid
from collections.abc import Callable, Iterator

import psycopg
import pytest
import sqlalchemy as sa
import sqlalchemy.exc

from migrations.runner import upgrade
from storage.postgres.engines import DATABASE_UNAVAILABLE, create_engine, raw_cursor
from storage.postgres.notifications import NotificationListener
from storage.postgres.settings import DatabaseSettings
from tests.conftest import execute, with_database
from tests.support.until import until

UNUSED_URL = "postgresql://postgres@127.0.0.1:1/postgres"  # nobody listens on port 1


def settings_for(url: str, **changes: object) -> DatabaseSettings:
    return DatabaseSettings.model_validate({"url": url, "pool_size": 2, **changes})


@pytest.fixture
def engine(postgres_url: str) -> Iterator[sa.Engine]:
    engine = create_engine(settings_for(postgres_url), application_name=f"test-{uuid.uuid4().hex}")
    yield engine
    engine.dispose()


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


def test_a_long_statement_is_cancelled(postgres_url: str) -> None:
    settings = settings_for(postgres_url, statement_timeout_s=2)
    engine = create_engine(settings, application_name="test")
    with pytest.raises(DATABASE_UNAVAILABLE), engine.begin() as connection:
        connection.execute(sa.text("SELECT pg_sleep(30)"))
    with pytest.raises(DATABASE_UNAVAILABLE), engine.begin() as connection:
        raw_cursor(connection).execute("SELECT pg_sleep(30)")
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT 1")).scalar_one() == 1
    engine.dispose()


@pytest.mark.parametrize("raw", [True, False])
def test_an_idle_transaction_is_ended_as_unavailable_and_the_next_works(
    postgres_url: str, engine: sa.Engine, *, raw: bool
) -> None:
    name = f"test-{uuid.uuid4().hex}"
    settings = settings_for(postgres_url, pool_size=1, idle_transaction_timeout_s=2)
    frozen = create_engine(settings, application_name=name)

    def work_and_freeze() -> None:
        with frozen.begin() as connection:
            run(connection, "SELECT 1", raw=raw)
            until(lambda: not sessions(engine, name), timeout_s=30)
            run(connection, "SELECT 1", raw=raw)

    with pytest.raises(DATABASE_UNAVAILABLE):
        work_and_freeze()
    with frozen.begin() as connection:
        run(connection, "SELECT 1", raw=raw)
    frozen.dispose()


def test_a_commit_after_a_lost_session_is_unavailable(postgres_url: str, engine: sa.Engine) -> None:
    name = f"test-{uuid.uuid4().hex}"
    settings = settings_for(postgres_url, pool_size=1, idle_transaction_timeout_s=2)
    frozen = create_engine(settings, application_name=name)
    with frozen.connect() as connection:
        connection.execute(sa.text("SELECT 1"))
        until(lambda: not sessions(engine, name), timeout_s=30)
        with pytest.raises(DATABASE_UNAVAILABLE):
            connection.commit()
    frozen.dispose()


def test_a_wait_for_a_lock_times_out(postgres_url: str, engine: sa.Engine, table: str) -> None:
    impatient = create_engine(
        settings_for(postgres_url, lock_timeout_s=0.1), application_name="test"
    )
    with engine.begin() as holder:
        holder.execute(sa.text(f"LOCK TABLE {table}"))
        with pytest.raises(DATABASE_UNAVAILABLE), impatient.begin() as connection:
            connection.execute(sa.text(f"SELECT * FROM {table}"))
    impatient.dispose()


def test_a_session_has_its_name_and_timeouts(postgres_url: str) -> None:
    url = sa.make_url(postgres_url).update_query_dict({"options": "-c work_mem=5MB"})
    settings = settings_for(
        url.render_as_string(hide_password=False),
        idle_transaction_timeout_s=7,
        statement_timeout_s=8,
    )
    engine = create_engine(settings, application_name="millrace-test")
    names = (
        "application_name",
        "idle_in_transaction_session_timeout",
        "statement_timeout",
        "work_mem",
    )
    with engine.connect() as connection:
        shown = [connection.execute(sa.text(f"SHOW {name}")).scalar_one() for name in names]
    engine.dispose()
    assert shown == ["millrace-test", "7s", "8s", "5MB"]


def test_the_pool_bounds_the_connections(postgres_url: str) -> None:
    settings = settings_for(postgres_url, pool_size=1, pool_wait_s=0.1)
    engine = create_engine(settings, application_name="test")
    with engine.connect(), pytest.raises(DATABASE_UNAVAILABLE):
        engine.connect()
    engine.dispose()


def test_an_idle_engine_survives_a_lost_backend(postgres_url: str, engine: sa.Engine) -> None:
    name = f"test-{uuid.uuid4().hex}"
    victim = create_engine(settings_for(postgres_url), application_name=name)
    with victim.connect() as one, victim.connect() as two:
        assert [c.execute(sa.text("SELECT 1")).scalar_one() for c in (one, two)] == [1, 1]
    assert terminate(engine, name) == 2
    with victim.connect() as connection:
        assert connection.execute(sa.text("SELECT 1")).scalar_one() == 1
    victim.dispose()


@pytest.mark.parametrize("raw", [True, False])
def test_a_lost_transaction_is_unavailable_and_the_next_works(
    postgres_url: str, engine: sa.Engine, *, raw: bool
) -> None:
    name = f"test-{uuid.uuid4().hex}"
    victim = create_engine(settings_for(postgres_url, pool_size=1), application_name=name)

    def work_and_lose_the_backend() -> None:
        with victim.begin() as connection:
            run(connection, "SELECT 1", raw=raw)
            assert terminate(engine, name) == 1
            run(connection, "SELECT 1", raw=raw)

    with pytest.raises(DATABASE_UNAVAILABLE):
        work_and_lose_the_backend()
    with victim.begin() as connection:
        run(connection, "SELECT 1", raw=raw)
    victim.dispose()


def test_a_missing_database_server_is_unavailable() -> None:
    engine = create_engine(settings_for(UNUSED_URL), application_name="test")
    with pytest.raises(DATABASE_UNAVAILABLE):
        engine.connect()


@pytest.fixture
def read_only_url(postgres_url: str) -> Iterator[str]:
    """The URL of a database whose new sessions only read, as on a standby."""
    name = f"read_only_{uuid.uuid4().hex[:12]}"
    execute(postgres_url, f"CREATE DATABASE {name}")
    execute(postgres_url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    yield with_database(postgres_url, name)
    execute(postgres_url, f"DROP DATABASE {name} WITH (FORCE)")


def test_a_read_only_server_is_unavailable(read_only_url: str) -> None:
    engine = create_engine(settings_for(read_only_url), application_name="test")
    with pytest.raises(DATABASE_UNAVAILABLE, match="read-only"):
        engine.connect()
    with NotificationListener(settings_for(read_only_url), "any") as waiting:
        assert not waiting.wait(0.2)
    with pytest.raises(DATABASE_UNAVAILABLE, match="read-only"):
        upgrade(read_only_url)


@pytest.mark.parametrize("raw", [True, False])
def test_a_write_to_a_read_only_server_is_unavailable(
    engine: sa.Engine, table: str, *, raw: bool
) -> None:
    insert = f"INSERT INTO {table} VALUES (1, NULL)"

    def write() -> None:
        with engine.begin() as connection:
            connection.execute(sa.text("SET TRANSACTION READ ONLY"))
            run(connection, insert, raw=raw)

    with pytest.raises(DATABASE_UNAVAILABLE):
        write()


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
        assert waiting.wait(5)  # the first connection
        yield waiting


def notify(engine: sa.Engine, channel: str) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text("SELECT pg_notify(:channel, '')"), {"channel": channel})


def in_background(work: Callable[[], object], after_s: float) -> threading.Timer:
    timer = threading.Timer(after_s, work)
    timer.start()
    return timer


def test_a_wait_without_notification_times_out(notifications: NotificationListener) -> None:
    start = time.monotonic()
    assert not notifications.wait(0.3)
    assert 0.25 < time.monotonic() - start < 2
    assert not notifications.wait(0)


def test_a_notification_ends_the_wait(
    notifications: NotificationListener, engine: sa.Engine, channel: str
) -> None:
    timer = in_background(lambda: notify(engine, channel), 0.1)
    start = time.monotonic()
    assert notifications.wait(10)
    assert time.monotonic() - start < 5
    timer.join()
    assert not notifications.wait(0.1)


def test_many_notifications_are_one(
    notifications: NotificationListener, engine: sa.Engine, channel: str
) -> None:
    burst = sa.text("SELECT pg_notify(:channel, n::text) FROM generate_series(1, 20) n")
    with engine.begin() as connection:
        connection.execute(burst, {"channel": channel})
    assert notifications.wait(5)
    notify(engine, "another")
    assert not notifications.wait(0.2)


def test_a_lost_listener_reconnects(
    notifications: NotificationListener, engine: sa.Engine, channel: str
) -> None:
    assert terminate(engine, channel) == 1
    assert notifications.wait(5)  # connected again: look, for something may have been missed
    assert not notifications.wait(0.2)
    notify(engine, channel)
    assert notifications.wait(5)


def test_a_close_ends_the_wait_of_another_thread(notifications: NotificationListener) -> None:
    timer = in_background(notifications.close, 0.1)
    start = time.monotonic()
    assert not notifications.wait(30)
    assert time.monotonic() - start < 5
    timer.join()
    notifications.close()
    assert not notifications.wait(0)


def test_waiting_for_an_absent_database_times_out() -> None:
    with NotificationListener(settings_for(UNUSED_URL), "any") as waiting:
        start = time.monotonic()
        assert not waiting.wait(0.2)
        assert 0.15 < time.monotonic() - start < 3
