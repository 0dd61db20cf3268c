"""An installation for a drill: services, proxies and hosts, all removed at its end."""

import contextlib
import secrets
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psutil
import sqlalchemy as sa

from chaos.errors import DrillError
from chaos.faults import disk
from chaos.installations.cleanup import cleanup_on_exit
from chaos.installations.hosts import ROOT, Host, await_ready, start_host, wait_until
from chaos.installations.proxy import Proxy
from chaos.installations.settings import ROLES, SESSION_S
from chaos.services import Addresses, down_marker
from cli.stack.processes.child import Child, ChildProcess, spawn
from cli.stack.processes.ports import HOST
from storage.postgres.engines import create_engine
from storage.postgres.settings import DatabaseSettings
from topics.settings import KafkaSettings

SERVICES_S_MAX = 120.0
STOP_S_MAX = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallationSpec:
    """The configuration of an installation."""

    data: Path
    options: tuple[str, ...]  # of `millrace up`
    env: Mapping[str, str] = field(default_factory=lambda: ROLES)
    host_names: tuple[str, ...] = ("a",)
    broker_count: int = 1
    env_by_host: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # overrides `env`
    mounts: Mapping[str, int] = field(default_factory=dict)  # folder to the MB of its small disk


@dataclass(slots=True)
class Installation:
    """A running installation."""

    spec: InstallationSpec
    addresses: Addresses
    services: ChildProcess
    proxy: Proxy
    engine: sa.Engine  # direct, without the proxies
    hosts: dict[str, Host] = field(default_factory=dict)

    @property
    def kafka(self) -> KafkaSettings:
        """The brokers, without the proxies."""
        return KafkaSettings(bootstrap_servers=self.addresses.kafka)

    def service_pid(self, name: str) -> int | None:
        """Return the process id of `postgres` or `kafka-N`, or None while it is down."""
        for child in psutil.Process(self.services.pid).children():
            try:
                command = child.cmdline()
            except psutil.Error:
                continue
            if any(f"/{name}/" in part for part in command) and child.is_running():
                return child.pid
        return None

    def keep_down(self, name: str) -> None:
        """Keep a service from restarting."""
        down_marker(self.spec.data / "services", name).touch()

    def allow_start(self, name: str) -> None:
        """Allow a service to start again."""
        down_marker(self.spec.data / "services", name).unlink(missing_ok=True)


@contextmanager
def run_installation(spec: InstallationSpec) -> Iterator[Installation]:
    """Run an installation for a block. Call this from the main thread. Raises DrillError."""
    with cleanup_on_exit() as closing:
        for folder, size_mb in spec.mounts.items():
            closing.callback(disk.mount(spec.data / folder, size_mb))
        services = _start_services(spec)
        closing.callback(_stop, services)
        addresses = _await_addresses(spec, services)
        proxy = Proxy()
        closing.callback(proxy.close)
        settings = DatabaseSettings.model_validate({"url": addresses.database_url})
        engine = create_engine(settings, application_name="chaos")
        closing.callback(engine.dispose)
        installation = Installation(spec, addresses, services, proxy, engine)
        for name in spec.host_names:
            first = next(iter(installation.hosts.values()), None)
            data = spec.data / f"host-{name}"
            objects = (first.data if first else data).absolute() / "objects"
            env = {
                **_add_proxies(installation, name),
                "MILLRACE_OBJECTS_ROOT": str(objects),
                "MILLRACE_HOST_ID": name,
            }
            own = {**spec.env, **env, **spec.env_by_host.get(name, {})}
            host = start_host(name, data, spec.options, own, secrets_from=first)
            closing.callback(host.stop)
            installation.hosts[name] = await_ready(host)
        yield installation


def _add_proxies(installation: Installation, name: str) -> dict[str, str]:
    """Put proxies between a host and the services; return the host's environment."""
    password = secrets.token_urlsafe()
    with installation.engine.begin() as connection:
        connection.execute(
            sa.text(f"CREATE ROLE host_{name} SUPERUSER LOGIN PASSWORD '{password}'")
        )
    nodes = installation.addresses.paths[name]
    for bound, advertised in nodes:
        installation.proxy.add(f"kafka-{name}", advertised, bound)
    socket = installation.addresses.postgres_socket
    port = installation.proxy.add(f"postgres-{name}", 0, socket)
    return {
        "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": ",".join(
            f"{HOST}:{advertised}" for _, advertised in nodes
        ),
        "MILLRACE_DATABASE_URL": f"postgresql://host_{name}:{password}@{HOST}:{port}/millrace",
    }


def _start_services(spec: InstallationSpec) -> ChildProcess:
    data = spec.data / "services"
    argv = (
        *(sys.executable, "-m", "chaos.services", "--data", str(data)),
        *("--brokers", str(spec.broker_count), "--session", str(SESSION_S)),
        *("--hosts", *spec.host_names),
    )
    child = Child(name="services", argv=argv, cwd=str(ROOT), parent_death_signal=signal.SIGTERM)
    return spawn(child, spec.data / "logs")


def _await_addresses(spec: InstallationSpec, services: ChildProcess) -> Addresses:
    log = spec.data / "logs" / "services.log"

    printed: list[str] = []

    def is_printed() -> bool:
        if services.has_ended():
            raise DrillError(f"the services ended: {log.read_text()[-800:]}")
        lines = log.read_text().splitlines()
        printed.extend(line for line in lines if line.startswith('{"postgres'))
        return bool(printed)

    wait_until(is_printed, SERVICES_S_MAX, "the services")
    return msgspec.json.decode(printed[0], type=Addresses)


def _stop(process: ChildProcess) -> None:
    for child in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            child.resume()
    process.stop(STOP_S_MAX)
