"""`python -m chaos.services`: Postgres and brokers of a drill under a supervisor of their own.

Prints their addresses on stdout and keeps them running until SIGTERM. A service stays down while
its marker file exists in the data folder.

A broker advertises its own address to clients, so a proxy in front of it needs a listener that
advertises the proxy. Each host of the installation has such a listener; the harness connects
directly.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from cli.stack.data_folder import cache_dir
from cli.stack.jars import cached_jars
from cli.stack.processes.child import Child
from cli.stack.processes.ports import HOST, accepts_connections, reserve_ports
from cli.stack.processes.supervisor import Supervisor
from cli.stack.services import embedded_kafka, embedded_postgres
from cli.stack.services.embedded_kafka import LOGGING, java_command, server_properties
from core.runtime.shutdown import SignalSafeEvent

HEAP: Final = "320m"
CLUSTER_ID: Final = "bWlsbHJhY2UtY2hhb3MtMQ"
"""Any 16 bytes: each drill has a cluster of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """One broker and its ports. `proxied` maps a host to listening port and advertised port."""

    node: int
    direct: int
    inner: int  # between brokers
    controller: int
    proxied: Mapping[str, tuple[int, int]]


class Addresses(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses of the services."""

    postgres_socket: str  # path of the Unix socket
    database_url: str  # direct
    kafka: str  # direct bootstrap servers
    paths: dict[str, list[tuple[int, int]]]  # host to (listening, advertised) ports, by broker


def down_marker(data: Path, name: str) -> Path:
    """Return the file that keeps a service down."""
    return data / f"{name}.down"


def main(arguments: Sequence[str]) -> int:
    """Run the services until a signal."""
    options = parse(arguments)
    stop = SignalSafeEvent()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set_from_signal())
    data: Path = options.data
    data.mkdir(parents=True, exist_ok=True)
    all_brokers = choose_ports(data, options.brokers, options.hosts)
    server = embedded_postgres.EmbeddedPostgres(data)
    server.prepare()
    jars = cached_jars(cache_dir(os.environ))
    brokers = (prepared_broker(data, jars, b, all_brokers, options.session) for b in all_brokers)
    children = [_with_marker(child, data) for child in (server.child(), *brokers)]
    supervisor = Supervisor(data / "logs")
    try:
        supervisor.start(children)
        supervisor.wait_until(
            server.is_ready, timeout_s=embedded_postgres.READY_S_MAX, what="Postgres"
        )
        for broker in all_brokers:
            supervisor.wait_until(
                partial(accepts_connections, broker.direct),
                timeout_s=embedded_kafka.READY_S_MAX,
                what=f"broker {broker.node}",
            )
        addresses = Addresses(
            postgres_socket=str(embedded_postgres.socket_dir(data / "postgres") / ".s.PGSQL.5432"),
            database_url=server.url,
            kafka=",".join(f"{HOST}:{broker.direct}" for broker in all_brokers),
            paths={
                host: [broker.proxied[host] for broker in all_brokers] for host in options.hosts
            },
        )
        sys.stdout.write(msgspec.json.encode(addresses).decode() + "\n")
        sys.stdout.flush()
        supervisor.run(stop.is_set)
    finally:
        supervisor.stop()
        server.remove_socket_folder()
    return 0


def choose_ports(data: Path, count: int, hosts: Sequence[str]) -> list[Broker]:
    """Return `count` brokers with free ports."""
    own = ("direct", "inner", "controller")
    proxied = [f"{side}-{host}" for host in hosts for side in ("bound", "advertised")]
    names = tuple(f"{kind}-{node}" for node in range(count) for kind in (*own, *proxied))
    ports = reserve_ports(data / "ports.json", names, random.Random())
    return [
        Broker(
            node=node + 1,
            **{kind: ports[f"{kind}-{node}"] for kind in own},
            proxied={
                host: (ports[f"bound-{host}-{node}"], ports[f"advertised-{host}-{node}"])
                for host in hosts
            },
        )
        for node in range(count)
    ]


def properties(
    broker: Broker, all_brokers: Sequence[Broker], log_dir: Path, *, session_s: float
) -> str:
    """Return a broker's configuration: that of the embedded broker with changes."""
    text = server_properties(
        log_dir, broker.direct, broker.controller, session_ms=int(session_s * 1000)
    )
    settings: dict[str, object] = {**dict(line.split("=", 1) for line in text.splitlines())}
    replicas = min(3, len(all_brokers))
    in_sync = 2 if replicas == 3 else 1
    listeners = {"DIRECT": (broker.direct, broker.direct), "INNER": (broker.inner, broker.inner)}
    listeners |= {host.upper(): ports for host, ports in broker.proxied.items()}
    bound = [f"{name}://{HOST}:{ports[0]}" for name, ports in listeners.items()]
    advertised = [f"{name}://{HOST}:{ports[1]}" for name, ports in listeners.items()]
    plain = [f"{name}:PLAINTEXT" for name in ("CONTROLLER", *listeners)]
    settings |= {
        "node.id": broker.node,
        "controller.quorum.voters": ",".join(
            f"{other.node}@{HOST}:{other.controller}" for other in all_brokers
        ),
        "listeners": ",".join([*bound, f"CONTROLLER://{HOST}:{broker.controller}"]),
        "advertised.listeners": ",".join(advertised),
        "listener.security.protocol.map": ",".join(plain),
        "inter.broker.listener.name": "INNER",
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def prepared_broker(
    data: Path, jars: Path, broker: Broker, all_brokers: Sequence[Broker], session_s: float
) -> Child:
    """Write a broker's configuration, format its log and return its child process."""
    name = f"kafka-{broker.node}"
    home = data.absolute() / name
    home.mkdir(parents=True, exist_ok=True)
    settings = home / "server.properties"
    settings.write_text(properties(broker, all_brokers, home / "log", session_s=session_s))
    (home / "log4j2.properties").write_text(LOGGING)
    arguments = (f"--cluster-id={CLUSTER_ID}", f"--config={settings}", "--ignore-formatted")
    tool = _java(jars, home, "kafka.tools.StorageTool", "format", *arguments)
    subprocess.run(tool, check=True, capture_output=True, timeout=60)
    command = _java(jars, home, "kafka.Kafka", str(settings))
    return Child(name=name, argv=command, stage=0, stop_timeout_s=5.0)


def _java(jars: Path, home: Path, main_class: str, *arguments: str) -> tuple[str, ...]:
    """Return the command line of one of Kafka's programs."""
    options = ("-XX:TieredStopAtLevel=1",)  # faster start of short-lived programs
    return java_command(jars, home, main_class, *arguments, heap=HEAP, options=options)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m chaos.services", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument("--session", type=float, default=2.0, help="seconds; members' sessions")
    parser.add_argument("--hosts", nargs="+", default=["a", "b"])
    return parser.parse_args(arguments)


def _with_marker(child: Child, data: Path) -> Child:
    """Return `child` with a start that fails while its marker file exists, and a short backoff."""
    start = child.before_start
    marker = down_marker(data, child.name)

    def refuse_or_start() -> None:
        if marker.exists():
            raise OSError(0, "kept down by a drill")
        start()

    return replace(child, before_start=refuse_or_start, backoff_s_max=0.5)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
