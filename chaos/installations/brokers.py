"""Brokers of a drill: one or three, each reachable by several addresses.

A broker advertises its own address to clients, so a proxy in front of it needs a listener that
advertises the proxy. Each host of the installation has such a listener; the harness connects
directly.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cli.stack.processes.child import Child
from cli.stack.processes.ports import HOST
from cli.stack.services.embedded_kafka import LOGGING, server_properties
from cli.stack.services.java_command import java_command

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


def properties(
    broker: Broker, all_brokers: Sequence[Broker], log_dir: Path, *, session_s: float
) -> str:
    """Return a broker's configuration: that of the embedded broker with changes."""
    text = server_properties(
        log_dir, broker.direct, broker.controller, session_ms=int(session_s * 1000)
    )
    settings: dict[str, object] = {}
    for line in text.splitlines():
        name, _, value = line.partition("=")
        settings[name] = value
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


def write_home(home: Path, text: str) -> None:
    """Write the files that a broker reads at start."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "server.properties").write_text(text)
    (home / "log4j2.properties").write_text(LOGGING)


def java(jars: Path, home: Path, main_class: str, *arguments: str) -> tuple[str, ...]:
    """Return the command line of one of Kafka's programs."""
    options = ("-XX:TieredStopAtLevel=1",)  # faster start of short-lived programs
    return java_command(jars, home, main_class, *arguments, heap=HEAP, options=options)


def format_command(jars: Path, home: Path) -> tuple[str, ...]:
    """Return the command that formats an empty log."""
    arguments = (f"--cluster-id={CLUSTER_ID}", f"--config={home / 'server.properties'}")
    return java(jars, home, "kafka.tools.StorageTool", "format", *arguments, "--ignore-formatted")


def child(jars: Path, home: Path, name: str) -> Child:
    """Return the broker as a child process that restarts quickly."""
    embedded = java(jars, home, "kafka.Kafka", str(home / "server.properties"))
    return Child(name=name, argv=embedded, stage=0, stop_timeout_s=5.0, backoff_s_max=0.5)
