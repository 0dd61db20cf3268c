"""Goal: the embedded broker and Postgres accept only who holds the data folder's secrets."""

import hashlib
import json
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from pydantic import SecretStr

from benchmarks.stacks.services import running_child
from cli.stack.data_folder import cache_dir
from cli.stack.errors import StackError
from cli.stack.services.embedded_kafka import EmbeddedKafka
from cli.stack.services.embedded_postgres import EmbeddedPostgres
from tests.support.until import until
from topics.clients.admin import TopicAdmin
from topics.clients.producer import RecordProducer
from topics.records.catalogue import RESULTS
from topics.settings import KafkaSettings
from topics.tail_readers.topic_tail_reader import TopicTailReader

READY_S_MAX = 60.0


@contextmanager
def running_broker(folder: Path, *, is_open: bool = False) -> Iterator[EmbeddedKafka]:
    broker = EmbeddedKafka(folder, cache_dir(os.environ), is_open=is_open)
    broker.prepare()
    with running_child(broker.child(), folder / "logs") as supervisor:
        supervisor.wait_until(broker.is_ready, timeout_s=READY_S_MAX, what="Kafka")
        TopicAdmin(broker.client_settings).wait_for_broker(READY_S_MAX)
        yield broker


@contextmanager
def running_server(folder: Path) -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(folder)
    server.prepare()
    with running_child(server.child(), folder / "logs") as supervisor:
        supervisor.wait_until(server.is_ready, timeout_s=READY_S_MAX, what="Postgres")
        yield server


def scalar(url: str | sa.URL, statement: str) -> object:
    engine = sa.create_engine(url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        result = connection.execute(sa.text(statement))
        return result.scalar_one() if result.returns_rows else None


def is_refused_by_kafka(settings: KafkaSettings) -> bool:
    """Whether a client gets no answer, although the broker answers others."""
    admin = AdminClient({**settings.client_options(), "log_level": 0})
    try:
        admin.list_topics(timeout=3)
    except KafkaException:
        return True
    return False


def controller_answers(folder: Path) -> bool:
    """Whether the controller describes its quorum to a connection that has not authenticated."""
    port = json.loads((folder / "kafka" / "ports.json").read_text())["controller"]
    name = b"__cluster_metadata"
    topics = bytes([2, len(name) + 1]) + name + bytes([2, 0, 0, 0, 0, 0, 0, 0])
    header = struct.pack(">hhih", 55, 0, 7, -1) + b"\0"  # DescribeQuorum, version 0
    request = header + topics
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        try:
            answer = connection.recv(1024)
        except ConnectionResetError:
            return False
    return name in answer


def test_log_of_an_earlier_release_asks_for_the_password_of_its_folder(tmp_path: Path) -> None:
    with running_broker(tmp_path, is_open=True) as earlier:  # as earlier releases started it
        TopicAdmin(earlier.client_settings).create([RESULTS])
        producer = RecordProducer(earlier.client_settings, client_id="earlier", linger_ms=0)
        producer.send(RESULTS.name, b"kept", partition=0)
        producer.flush(READY_S_MAX)
        producer.close()
        assert controller_answers(tmp_path)

    with running_broker(tmp_path) as broker:
        tail = TopicTailReader(broker.client_settings, RESULTS, client_id="test")
        assert [record.value for record in tail.read_to_end(30)] == [b"kept"]
        tail.close()
        plain = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
        wrong = broker.client_settings.model_copy(update={"sasl_password": SecretStr("wrong")})
        assert is_refused_by_kafka(plain)
        assert is_refused_by_kafka(wrong)
        assert not controller_answers(tmp_path)
        until(lambda: not is_refused_by_kafka(broker.client_settings))
        log = "".join(path.read_text() for path in (tmp_path / "kafka").rglob("server*.log*"))

    secret = (tmp_path / "kafka" / "password").read_text()
    assert secret not in log
    assert secret not in " ".join(broker.child().argv)
    for name in ("password", "server.properties"):
        assert (tmp_path / "kafka" / name).stat().st_mode & 0o777 == 0o600


def test_cluster_of_an_earlier_release_asks_for_the_password_of_its_folder(
    tmp_path: Path,
) -> None:
    server = EmbeddedPostgres(tmp_path)
    server.prepare()
    home = tmp_path / "postgres"
    # As earlier releases left it: no password, and a file that lets everyone in.
    (home / "cluster" / "pg_hba.conf").write_text("local all all trust\n")
    server._run_statements(home / "cluster", "ALTER ROLE postgres PASSWORD NULL")
    for name in ("pg_hba.conf", "password"):
        (home / name).unlink()

    with running_server(tmp_path) as server:
        assert scalar(server.url, "SELECT 1") == 1
        url = sa.make_url(server.url)
        with pytest.raises(sa.exc.OperationalError, match="no password supplied"):
            scalar(
                sa.URL.create(url.drivername, "postgres", database=url.database, query=url.query),
                "SELECT 1",
            )
        with pytest.raises(sa.exc.OperationalError, match="password authentication failed"):
            scalar(url.set(password="wrong"), "SELECT 1")
        scalar(server.url, "CREATE TABLE kept AS SELECT 1 AS mark")

    (home / "password").unlink()  # lost: a new one applies at the next start
    with running_server(tmp_path) as server:
        assert scalar(server.url, "SELECT mark FROM kept") == 1
    secret = (home / "password").read_text()
    assert secret not in " ".join(server.child().argv)
    assert hashlib.sha256(secret.encode()).hexdigest() in (home / "pg_hba.conf").read_text()
    for name in ("password", "pg_hba.conf"):
        assert (home / name).stat().st_mode & 0o777 == 0o600


def test_errors_of_postgres_programs_do_not_show_the_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = EmbeddedPostgres(tmp_path)
    server.prepare()
    with pytest.raises(StackError) as failure:
        server._run_statements(
            tmp_path / "postgres" / "cluster", "ALTER ROLE nobody PASSWORD 'canary'"
        )
    assert "canary" not in str(failure.value)
