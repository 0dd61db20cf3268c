"""`python -m chaos.services`: Postgres and brokers of a drill under a supervisor of their own.

Prints their addresses on stdout and keeps them running until SIGTERM. A service stays down while
its marker file exists in the data folder.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from chaos.installations import brokers
from chaos.installations.brokers import Broker
from cli.stack.jars import cached_jars
from cli.stack.processes.child import Child
from cli.stack.processes.ports import HOST, accepts_connections, reserve_ports
from cli.stack.processes.supervisor import Supervisor
from cli.stack.services import embedded_kafka, embedded_postgres
from cli.stack.state.data_folder import cache_dir
from core.shutdown import SignalSafeEvent


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
    children = [_with_marker(server.child(), data)]
    for broker in all_brokers:
        children.append(
            _with_marker(prepared_broker(data, jars, broker, all_brokers, options.session), data)
        )
    supervisor = Supervisor(data / "logs")
    try:
        supervisor.start(children)
        supervisor.wait_until(
            server.is_ready, timeout_s=embedded_postgres.READY_S_MAX, what="Postgres"
        )
        for broker in all_brokers:
            supervisor.wait_until(
                _listens(broker.direct),
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
    kinds = ("direct", "inner", "controller")
    names = [f"{kind}-{node}" for node in range(count) for kind in kinds]
    names += [
        f"{side}-{host}-{node}"
        for node in range(count)
        for host in hosts
        for side in ("bound", "advertised")
    ]
    ports = reserve_ports(data / "ports.json", tuple(names), random.Random())
    return [
        Broker(
            node=node + 1,
            direct=ports[f"direct-{node}"],
            inner=ports[f"inner-{node}"],
            controller=ports[f"controller-{node}"],
            proxied={
                host: (ports[f"bound-{host}-{node}"], ports[f"advertised-{host}-{node}"])
                for host in hosts
            },
        )
        for node in range(count)
    ]


def prepared_broker(
    data: Path, jars: Path, broker: Broker, all_brokers: Sequence[Broker], session_s: float
) -> Child:
    """Write a broker's configuration, format its log and return its child process."""
    name = f"kafka-{broker.node}"
    home = data.absolute() / name
    brokers.write_home(
        home, brokers.properties(broker, all_brokers, home / "log", session_s=session_s)
    )
    subprocess.run(brokers.format_command(jars, home), check=True, capture_output=True, timeout=60)
    return brokers.child(jars, home, name)


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


def _listens(port: int) -> Callable[[], bool]:
    return lambda: accepts_connections(port)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
