"""A cluster of two brokers whose second broker can be frozen: its partitions are unavailable then.

The first broker is also the controller and holds all internal topics, so groups keep working.
"""

import os
import random
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from cli.stack.data_folder import cache_dir
from cli.stack.jars import cached_jars
from cli.stack.processes.child import Child
from cli.stack.processes.ports import HOST, reserve_ports
from cli.stack.processes.supervisor import Supervisor
from cli.stack.services.embedded_kafka import ENV, LOGGING, java_command, server_properties
from tests.support.until import until
from topics.clients.admin import TopicAdmin
from topics.records.catalogue import Topic
from topics.settings import KafkaSettings

FIRST, SECOND = 1, 2
_HEAP = "256m"
_CLUSTER_ID = "bWlsbHJhY2UtdGVzdHMtMQ"
_READY_S_MAX = 60.0
_REQUEST_S_MAX = 30.0


@dataclass(frozen=True, slots=True)
class TwoBrokers:
    """Both brokers."""

    address: str
    _supervisor: Supervisor

    def freeze(self) -> None:
        """Stop the second broker: its partitions answer no request and soon have no leader."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Continue the second broker."""
        self._signal(signal.SIGCONT)

    def create_topics(
        self, kafka: KafkaSettings, topics: Iterable[Topic], second: Mapping[str, set[int]]
    ) -> None:
        """Create topics; the partitions in `second`, by topic, are on the second broker alone.

        Waits until it is alive: the controller refuses partitions of a broker that was just thawed.
        """
        admin = AdminClient({"bootstrap.servers": self.address})
        _wait_for_both(admin)
        new = [
            NewTopic(
                kafka.topic_prefix + topic.name,
                num_partitions=topic.partition_count,
                replica_assignment=[
                    [SECOND if number in second.get(topic.name, ()) else FIRST]
                    for number in range(topic.partition_count)
                ],
                config=topic.configuration(min_insync_replicas=1, bodies_days=kafka.retention_days),
            )
            for topic in topics
        ]
        for created in admin.create_topics(new).values():
            created.result(_REQUEST_S_MAX)
        TopicAdmin(kafka).create(topics)  # waits until each partition has a leader

    def _signal(self, number: signal.Signals) -> None:
        pid = self._supervisor.pid(_name(SECOND))
        assert pid is not None
        os.kill(pid, number)


@contextmanager
def running_brokers(folder: Path) -> Iterator[TwoBrokers]:
    """Run both brokers for a block."""
    names = ("first", "controller", "second")
    folder.mkdir(parents=True, exist_ok=True)
    ports = reserve_ports(folder / "ports.json", names, random.Random())
    jars = cached_jars(cache_dir(os.environ))
    children = [
        _child(folder / _name(FIRST), jars, FIRST, ports["first"], ports["controller"]),
        _child(folder / _name(SECOND), jars, SECOND, ports["second"], ports["controller"]),
    ]
    supervisor = Supervisor(folder / "logs")
    supervisor.start(children[:1])
    address = f"{HOST}:{ports['first']}"
    admin = AdminClient({"bootstrap.servers": address})
    brokers = TwoBrokers(address, supervisor)
    try:
        TopicAdmin(KafkaSettings(bootstrap_servers=address)).wait_for_broker(_READY_S_MAX)
        _create_offsets_topic(address)
        supervisor.start(children[1:])
        _wait_for_both(admin)
        yield brokers
    finally:
        brokers.thaw()
        supervisor.stop()


def _wait_for_both(admin: AdminClient) -> None:
    """Wait until the controller knows both brokers as alive."""

    def are_alive() -> bool:
        with suppress(KafkaException):  # its connection to a broker has just ended
            return len(admin.list_topics(timeout=_REQUEST_S_MAX).brokers) == 2
        return False

    until(are_alive, timeout_s=_READY_S_MAX)


def _create_offsets_topic(address: str) -> None:
    """Create the topic of committed offsets on the only broker: it then coordinates all groups."""
    reader = Consumer({"bootstrap.servers": address, "group.id": "any"})

    def has_coordinator() -> bool:
        try:
            reader.committed([TopicPartition("any", 0)], timeout=5)
        except KafkaException:
            return False
        return True

    until(has_coordinator, timeout_s=_READY_S_MAX)
    reader.close()


def _name(node: int) -> str:
    return f"kafka-{node}"


def _child(home: Path, jars: Path, node: int, port: int, controller: int) -> Child:
    """Write the broker's configuration, format its log and return its process."""
    home.mkdir()
    text = server_properties(Path("log"), port, controller, session_ms=6000)
    settings = dict(line.split("=", 1) for line in text.splitlines())
    if node != FIRST:
        settings |= {
            "process.roles": "broker",
            "node.id": str(node),
            "listeners": f"PLAINTEXT://{HOST}:{port}",
        }
    path = home / "server.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    (home / "log4j2.properties").write_text(LOGGING)
    tool = java_command(
        jars,
        home,
        "kafka.tools.StorageTool",
        "format",
        f"--cluster-id={_CLUSTER_ID}",
        f"--config={path}",
        heap=_HEAP,
    )
    subprocess.run(tool, check=True, capture_output=True, timeout=60, cwd=home)
    return Child(
        name=_name(node),
        argv=java_command(jars, home, "kafka.Kafka", str(path), heap=_HEAP),
        env=ENV,
        cwd=str(home),
        parent_death_signal=signal.SIGTERM,
        stop_timeout_s=5.0,
    )
