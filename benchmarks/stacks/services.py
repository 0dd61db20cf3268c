"""A broker and a database of a benchmark's own, the same programs as the stack's."""

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.children.line_child import LineChild
from cli.stack.data_folder import cache_dir
from cli.stack.processes.child import Child
from cli.stack.processes.supervisor import Supervisor
from cli.stack.services import embedded_kafka, embedded_postgres
from topics.clients.admin import TopicAdmin
from topics.settings import KafkaSettings

_BROKER_S_MAX = 60.0

_LONG_SESSION = ("--override", "broker.session.timeout.ms=60000")
"""The embedded broker's session is 2 s: on a machine that is busy for longer the controller fences
it, and its partitions have no leader. A broker that is not restarted needs no short session."""


@dataclass(frozen=True, slots=True)
class Service:
    """A running service."""

    address: str  # `host:port` of the broker, else a URL; SQLAlchemy's of the database
    roles: dict[str, int]  # name to process id, for `cpu_by_role`


@contextmanager
def running_kafka(folder: Path, *java_options: str) -> Iterator[Service]:
    """Run a broker for a block."""
    broker = embedded_kafka.EmbeddedKafka(folder, cache_dir(os.environ), is_open=True)
    broker.prepare()
    child = broker.child(java_options=java_options)
    child = replace(child, argv=(*child.argv, *_LONG_SESSION))
    with running_child(child, folder / "logs") as supervisor:
        supervisor.wait_until(broker.is_ready, timeout_s=embedded_kafka.READY_S_MAX, what="Kafka")
        servers = broker.bootstrap_servers
        TopicAdmin(KafkaSettings(bootstrap_servers=servers)).wait_for_broker(_BROKER_S_MAX)
        yield Service(servers, _roles(supervisor, "kafka"))


@contextmanager
def running_postgres(folder: Path, *options: str) -> Iterator[Service]:
    """Run a database server with one empty database for a block; `options` are the server's."""
    server = embedded_postgres.EmbeddedPostgres(folder)
    server.prepare()
    child = server.child()
    with running_child(replace(child, argv=(*child.argv, *options)), folder / "logs") as supervisor:
        supervisor.wait_until(
            server.is_ready, timeout_s=embedded_postgres.READY_S_MAX, what="Postgres"
        )
        yield Service(server.url, _roles(supervisor, "postgres"))
    server.remove_socket_folder()


@contextmanager
def running_server(
    name: str, arguments: Sequence[str], folder: Path, *, ready_s_max: float
) -> Iterator[Service]:
    """Run an HTTP server of `benchmarks.children` for a block. Raises VoidRunError."""
    with closing(LineChild(name, f"benchmarks.children.{name}", arguments, folder)) as child:
        port = child.expect("ready", ready_s_max)
        yield Service(f"http://127.0.0.1:{port}", {name: child.pid})


def driver_url(sqlalchemy_url: str) -> str:
    """Return a database URL as psycopg expects it."""
    return sqlalchemy_url.replace("+psycopg", "", 1)


@contextmanager
def running_child(child: Child, log_dir: Path) -> Iterator[Supervisor]:
    """Run a child for a block."""
    supervisor = Supervisor(log_dir)
    supervisor.start([child])
    try:
        yield supervisor
    finally:
        supervisor.stop()


def _roles(supervisor: Supervisor, name: str) -> dict[str, int]:
    pid = supervisor.pid(name)
    assert pid is not None, f"{name} ended after it was ready"
    return {name: pid}
