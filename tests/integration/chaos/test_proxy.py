"""Goal: each mode of the proxy, and taking all connections, has exactly the described effect."""

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from benchmarks.stacks.services import running_postgres
from chaos.faults.connections import exhaust_connections
from chaos.installations import proxy as proxies
from chaos.installations.proxy import Proxy
from cli.stack.processes.ports import HOST
from storage.postgres.engines import DATABASE_UNAVAILABLE, create_engine
from storage.postgres.settings import DatabaseSettings

WAIT_S = 20.0
SHORT_S = 0.3


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of an echo server."""
    server = socket.create_server((HOST, 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    def answer(connection: socket.socket) -> None:
        with connection:
            try:
                while chunk := connection.recv(65536):
                    connection.sendall(chunk)
            except OSError:
                return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join(WAIT_S)


@pytest.fixture
def proxied(echo: int) -> Iterator[tuple[Proxy, int]]:
    proxy = Proxy()
    yield proxy, proxy.add("echo", 0, echo)
    proxy.close()


def connect(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), WAIT_S)


def exchange(connection: socket.socket, text: bytes = b"hello") -> bytes:
    connection.sendall(text)
    return connection.recv(65536)


def request_once(port: int) -> None:
    """Raise ConnectionError when the connection is refused or reset."""
    with connect(port) as connection:
        if not exchange(connection):
            raise ConnectionAbortedError


def test_the_default_mode_passes_bytes(proxied: tuple[Proxy, int]) -> None:
    _, port = proxied
    with connect(port) as connection:
        assert exchange(connection) == b"hello"


def test_latency_delays_each_chunk(proxied: tuple[Proxy, int]) -> None:
    proxy, port = proxied
    proxy.set_mode("echo", "latency")
    with connect(port) as connection:
        started_s = time.monotonic()
        assert exchange(connection) == b"hello"
        assert time.monotonic() - started_s >= 2 * proxies.LATENCY_S  # both directions


def test_throttling_bounds_the_rate(proxied: tuple[Proxy, int]) -> None:
    proxy, port = proxied
    proxy.set_mode("echo", "throttle")
    with connect(port) as connection:
        started_s = time.monotonic()
        size = proxies.BYTES_PER_S // 8
        connection.sendall(b"x" * size)
        received = 0
        while received < size:
            received += len(connection.recv(65536))
        assert time.monotonic() - started_s >= size / proxies.BYTES_PER_S


def test_a_black_hole_keeps_bytes_until_it_is_healed(proxied: tuple[Proxy, int]) -> None:
    proxy, port = proxied
    with connect(port) as connection:
        assert exchange(connection) == b"hello"
        proxy.set_mode("echo", "blackhole")
        connection.sendall(b"lost?")
        connection.settimeout(SHORT_S)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(WAIT_S)
        proxy.set_mode("echo", "pass")
        assert connection.recv(65536) == b"lost?"


def test_a_reset_closes_connections_once(proxied: tuple[Proxy, int]) -> None:
    proxy, port = proxied
    with connect(port) as connection:
        assert exchange(connection) == b"hello"
        proxy.reset("echo")
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with connect(port) as connection:
        assert exchange(connection) == b"hello"


def test_refusal_accepts_no_connection(proxied: tuple[Proxy, int]) -> None:
    proxy, port = proxied
    with connect(port) as before:
        assert exchange(before) == b"hello"
        proxy.set_mode("echo", "refuse")
        with pytest.raises(ConnectionResetError):
            before.recv(1)
    with pytest.raises(ConnectionError):  # while connecting, or at the first request
        request_once(port)
    proxy.set_mode("echo", "pass")
    with connect(port) as after:
        assert exchange(after) == b"hello"


@pytest.fixture
def own_postgres(tmp_path: Path) -> Iterator[str]:
    """The URL of a cluster of this test alone, since the test takes all its connections."""
    with running_postgres(tmp_path) as postgres:
        yield postgres.address


def test_all_connections_are_taken_and_freed(own_postgres: str) -> None:
    settings = DatabaseSettings.model_validate({"url": own_postgres, "pool_size": 4})
    engine = create_engine(settings, application_name="test")
    query = sa.text("SELECT 1")
    with engine.connect() as used, engine.connect():
        used.execute(query)
        heal = exhaust_connections(own_postgres)
        with pytest.raises(DATABASE_UNAVAILABLE):
            used.execute(query)
    for _ in range(8):  # idle connections of the pool as well
        with pytest.raises(DATABASE_UNAVAILABLE, match="too many clients"):
            engine.connect()

    heal()

    with engine.connect() as connection:
        assert connection.execute(query).scalar_one() == 1
    engine.dispose()
