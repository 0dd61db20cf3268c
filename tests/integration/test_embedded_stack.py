"""Goal: embedded services restart on their data and die with their parent."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.stacks.services import running_child
from cli.stack.data_folder import cache_dir
from cli.stack.processes.child import Child, spawn
from cli.stack.processes.supervisor import Supervisor
from cli.stack.services.embedded_kafka import EmbeddedKafka
from cli.stack.services.embedded_postgres import EmbeddedPostgres
from migrations.runner import upgrade
from storage.postgres.notifications import NotificationListener
from storage.postgres.settings import DatabaseSettings
from tests.conftest import execute
from tests.support.until import until

READY_S_MAX = 40.0

STACK_PROGRAM = """
import sys
from pathlib import Path
from cli.stack.processes.child import Child
from cli.stack.services.embedded_kafka import EmbeddedKafka
from cli.stack.services.embedded_postgres import EmbeddedPostgres
from cli.stack.processes.supervisor import Supervisor

folder, cache = map(Path, sys.argv[1:])
broker, server = EmbeddedKafka(folder, cache), EmbeddedPostgres(folder)
broker.prepare()
server.prepare()
supervisor = Supervisor(folder / "logs")
role = Child(name="role", argv=(sys.executable, "-c", "import time; time.sleep(600)"), stage=2)
supervisor.start([server.child(), broker.child(), role])
supervisor.wait_until(server.is_ready, timeout_s=40, what="Postgres")
supervisor.wait_until(broker.is_ready, timeout_s=40, what="Kafka")
print("ready", flush=True)
supervisor.run(lambda: False)
"""


@dataclass(frozen=True)
class Stack:
    """A broker and a cluster on one data folder."""

    folder: Path
    broker: EmbeddedKafka
    server: EmbeddedPostgres
    supervisor: Supervisor


@contextmanager
def running_stack(folder: Path) -> Iterator[Stack]:
    broker, server = EmbeddedKafka(folder, cache_dir(os.environ)), EmbeddedPostgres(folder)
    broker.prepare()
    server.prepare()
    supervisor = Supervisor(folder / "logs")
    try:
        supervisor.start([server.child(), broker.child()])
        supervisor.wait_until(server.is_ready, timeout_s=READY_S_MAX, what="Postgres")
        supervisor.wait_until(broker.is_ready, timeout_s=READY_S_MAX, what="Kafka")
        yield Stack(folder, broker, server, supervisor)
    finally:
        supervisor.stop()


@contextmanager
def running_server(server: EmbeddedPostgres, logs: Path) -> Iterator[Supervisor]:
    with running_child(server.child(), logs) as supervisor:
        supervisor.wait_until(server.is_ready, timeout_s=READY_S_MAX, what="Postgres")
        yield supervisor


def write_marks(stack: Stack) -> None:
    servers = stack.broker.client_settings.client_options()
    admin = AdminClient(servers)
    admin.create_topics([NewTopic("marks", 1, 1)])["marks"].result(timeout=30)
    producer = Producer({**servers, "acks": "all"})
    producer.produce("marks", b"mark")
    assert producer.flush(40) == 0
    execute(stack.server.url, "CREATE TABLE marks AS SELECT 'mark' AS mark")


def assert_marks(stack: Stack) -> None:
    settings = stack.broker.client_settings.client_options()
    options = {**settings, "group.id": uuid.uuid4().hex}
    consumer = Consumer(options)
    consumer.assign([TopicPartition("marks", 0, 0)])
    record = consumer.poll(15)
    consumer.close()
    assert record is not None
    assert (record.error(), record.value()) == (None, b"mark")
    engine = sa.create_engine(stack.server.url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT mark FROM marks")).scalar_one() == "mark"


def supervise_until(
    supervisor: Supervisor, condition: Callable[[], object], timeout_s: float = 30.0
) -> None:
    """Keep the children running until the condition is true."""

    def is_met() -> object:
        supervisor.run_once()
        return condition()

    until(is_met, timeout_s=timeout_s)


def has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def processes_of(folder: Path) -> list[psutil.Process]:
    """Return running processes with `folder` in their command line or working directory."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd", "status"]):
        paths = [*(process.info["cmdline"] or []), process.info["cwd"] or ""]
        alive = process.info["status"] != psutil.STATUS_ZOMBIE
        if alive and any(str(folder) in path for path in paths):
            found.append(process)
    return found


def test_data_survives_kills_and_a_restart_on_other_ports_beside_another_stack(
    tmp_path: Path, kafka_bootstrap: str, postgres_url: str
) -> None:
    """The other stack is that of the test session."""
    with running_stack(tmp_path) as stack:
        assert stack.broker.bootstrap_servers != kafka_bootstrap
        assert stack.server.url != postgres_url
        write_marks(stack)
        supervisor, first = stack.supervisor, stack.broker.bootstrap_servers
        killed = {name: supervisor.pid(name) for name in ("kafka", "postgres")}
        for pid in killed.values():
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
        supervise_until(
            supervisor,
            lambda: all(supervisor.pid(name) not in {None, pid} for name, pid in killed.items()),
        )
        supervise_until(supervisor, stack.server.is_ready, READY_S_MAX)
        supervise_until(supervisor, stack.broker.is_ready, READY_S_MAX)
        assert_marks(stack)
        assert all(count >= 1 for count in supervisor.restart_counts().values())
    (tmp_path / "kafka" / "ports.json").unlink()  # as if another program used one of them

    with running_stack(tmp_path) as stack:
        assert stack.broker.bootstrap_servers != first
        assert_marks(stack)

    assert processes_of(tmp_path) == []


def test_stale_lock_with_a_reused_pid_is_removed(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path)
    server.prepare()
    stale = f"{os.getpid()}\n{tmp_path}\n1700000000\n5432\n{tmp_path}\n\n"
    (tmp_path / "postgres" / "cluster" / "postmaster.pid").write_text(stale)
    with running_server(server, tmp_path / "logs") as supervisor:
        assert supervisor.restart_counts() == {"postgres": 0}


@pytest.mark.parametrize("name", ["d" * 100, "a+b%41&c=d #e?"], ids=["deep", "URL syntax"])
def test_data_folder_name_with_special_characters(tmp_path: Path, name: str) -> None:
    server = EmbeddedPostgres(tmp_path / name)
    server.prepare()
    with running_server(server, tmp_path / "logs"):
        upgrade(server.url)
        settings = DatabaseSettings.model_validate({"url": server.url})
        with NotificationListener(settings, "anything") as notifications:
            assert notifications.wait(READY_S_MAX)


def test_kafka_log_is_in_the_data_folder_of_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    data = tmp_path / "dé,日\\t"
    broker = EmbeddedKafka(data, cache_dir(os.environ))

    broker.prepare()  # formats the log

    assert (data / "kafka" / "log" / "meta.properties").is_file()
    assert broker.child().cwd == str(data / "kafka")
    assert list(tmp_path.iterdir()) == [data]


def test_children_die_with_a_killed_supervisor(tmp_path: Path) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", STACK_PROGRAM, str(tmp_path), str(cache_dir(os.environ))],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == b"ready\n"
        children = psutil.Process(program.pid).children(recursive=True)
        assert len(children) > 3
    finally:
        program.kill()
        program.communicate()

    until(lambda: all(map(has_ended, children)), timeout_s=30)
    until(lambda: processes_of(tmp_path) == [], timeout_s=30)


@pytest.mark.parametrize("ending", ["stop", "death"])
def test_process_group_ends_with_the_child(tmp_path: Path, ending: str) -> None:
    program = "import subprocess, time; subprocess.Popen(['sleep', '600']); time.sleep(600)"
    child = Child(name="parent", argv=(sys.executable, "-c", program), restart=False)
    supervisor = Supervisor(tmp_path)
    supervisor.start([child])
    pid = supervisor.pid("parent")
    assert pid is not None
    supervise_until(supervisor, lambda: len(psutil.Process(pid).children()) == 1)
    (grandchild,) = psutil.Process(pid).children()

    if ending == "death":
        os.kill(pid, signal.SIGKILL)
        supervise_until(supervisor, lambda: supervisor.pid("parent") is None)
        supervisor.run_once()
    supervisor.stop()

    until(lambda: has_ended(grandchild), timeout_s=30)


def test_child_output_is_logged_and_a_large_log_is_truncated(tmp_path: Path) -> None:
    log = tmp_path / "talker.log"
    with log.open("wb") as file:
        file.truncate(11 * 1024 * 1024)

    process = spawn(Child(name="talker", argv=("echo", "hello")), tmp_path)
    until(process.has_ended, timeout_s=30)

    assert process.kill_and_reap() == 0
    assert log.read_bytes() == b"hello\n"
    assert (tmp_path / "talker.log.1").stat().st_size == 11 * 1024 * 1024
