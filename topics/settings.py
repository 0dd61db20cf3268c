"""Settings of Kafka clients."""

import logging
import ssl
from pathlib import Path
from typing import ClassVar, Final, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from core.settings import Settings
from topics.records.catalogue import RETENTION_DAYS

CLIENT_LOG = logging.getLogger("librdkafka")
"""Logger of the clients' own threads, which otherwise write to stderr."""

HEARTBEATS_PER_SESSION: Final = 12
"""Heartbeats in a session timeout. A rebalance takes up to three: revoke, join and assign."""

HEARTBEAT_S_MIN: Final = 0.1


GroupProtocol = Literal["classic", "consumer"]


class KafkaSettings(Settings):
    """Connection, delivery and group settings of every Kafka client."""

    env_prefix: ClassVar[str] = "MILLRACE_KAFKA_"

    bootstrap_servers: str = Field(min_length=1)
    """Comma-separated `host:port` list. No default: a wrong one would look like an outage."""

    topic_prefix: str = Field(default="", pattern=r"^[a-zA-Z0-9._-]*$", max_length=64)
    """Prefix of every topic and group name, so that installations can share a cluster."""

    replication_factor: int = Field(default=1, ge=1, le=7)
    """Copies of each partition. Default 1 for one broker; use 3 in a cluster of three."""

    min_insync_replicas: int = Field(default=1, ge=1, le=7)
    """Copies that must hold a record before it is acknowledged. With three copies, 2."""

    retention_days: int = Field(default=RETENTION_DAYS, ge=1, le=RETENTION_DAYS)
    """How long topics keep prompts and answers. With less than the longest completion window, items
    of a job that waits longer are re-emitted. A rebuild and an audit of the log reach back only as
    far as the log does."""

    delivery_timeout_s: float = Field(default=120.0, ge=1, le=3600)
    """How long a role waits for space in its full queue of records before it ends. Queued records
    wait until their partition is available."""

    partition_timeout_s: float = Field(default=5.0, ge=0.1, le=600)
    """How long records may wait for a partition without any acknowledgement until it counts as
    unavailable: new work avoids it, and a metric names it. Default 5 s."""

    compression: Literal["none", "lz4", "snappy", "zstd"] = "lz4"
    """How producers pack records. Default lz4: half the bytes for a few µs of CPU a KB."""

    session_timeout_s: float = Field(default=6.0, ge=0.5, le=300)
    """Time without a heartbeat after which the broker reassigns a member's partitions."""

    group_protocol: GroupProtocol = "classic"
    """How members join groups; Faust always joins as `classic`. `consumer` (KIP-848) moves only the
    partitions that must move and outlives a restart of the broker without any rebalance, but the
    broker sets the session: `group.consumer.session.timeout.ms`, 45 s unless it is lowered."""

    members_folder: Path | None = None
    """Folder where the process records its group memberships. After a kill, the next process with
    the same folder removes its predecessor's membership and so gets the partitions at once, not
    after a session timeout. One folder for each process, on a local disk; `millrace up` sets it."""

    commit_interval_s: float = Field(default=0.2, ge=0.01, le=60)
    """Interval of offset commits: bounds the work that a crash repeats. Replicas have their own
    interval."""

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """As in Kafka's own `security.protocol`."""

    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    sasl_username: str | None = None
    sasl_password: SecretStr | None = None
    ssl_ca_location: str | None = None

    @field_validator("bootstrap_servers")
    @classmethod
    def _names_hosts(cls, given: str) -> str:
        """Remove spaces, which clients read in different ways."""
        servers = [server.strip() for server in given.split(",") if server.strip()]
        if not servers:
            raise ValueError("names no server")
        if any("://" in server for server in servers):
            raise ValueError("give host:port, without a scheme such as PLAINTEXT://")
        return ",".join(servers)

    @field_validator("members_folder")
    @classmethod
    def _is_absolute(cls, given: Path | None) -> Path | None:
        """Reject relative paths: roles may start in different folders."""
        if given is not None and not given.is_absolute():
            raise ValueError("give an absolute path")
        return given

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if self.min_insync_replicas > self.replication_factor:
            raise ValueError("min_insync_replicas above replication_factor: nothing could be sent")
        if self.security_protocol.startswith("SASL_") != bool(self.sasl_mechanism):
            raise ValueError("a security_protocol with SASL needs sasl_mechanism, and no other has")
        if self.sasl_mechanism and not (self.sasl_username and self.sasl_password):
            raise ValueError("sasl_mechanism needs sasl_username and sasl_password")
        if self.security_protocol.endswith("SSL") and self.ssl_ca_location:
            _check_certificates(self.ssl_ca_location)
        return self

    @property
    def heartbeat_s(self) -> float:
        """Interval of a member's heartbeats, whose responses announce a rebalance."""
        return max(HEARTBEAT_S_MIN, self.session_timeout_s / HEARTBEATS_PER_SESSION)

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the TLS context of Python clients, None without encryption."""
        if not self.security_protocol.endswith("SSL"):
            return None
        return ssl.create_default_context(cafile=self.ssl_ca_location)

    def client_options(self) -> dict[str, str | int | float | bool]:
        """Return the librdkafka options of every client."""
        options: dict[str, str | int | float | bool] = {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": self.security_protocol,
            "socket.keepalive.enable": True,
            "reconnect.backoff.ms": 100,
            "reconnect.backoff.max.ms": 1000,
            "log.connection.close": False,
        }
        if self.sasl_mechanism:
            options["sasl.mechanism"] = self.sasl_mechanism
            options["sasl.username"] = self.sasl_username or ""
            secret = self.sasl_password
            options["sasl.password"] = secret.get_secret_value() if secret else ""
        if self.ssl_ca_location:
            options["ssl.ca.location"] = self.ssl_ca_location
        return options


def _check_certificates(path: str) -> None:
    """Raise ValueError unless the file holds certificates."""
    try:
        ssl.create_default_context(cafile=path)
    except ssl.SSLError:
        raise ValueError("ssl_ca_location holds no certificates") from None
    except OSError as error:
        raise ValueError(f"ssl_ca_location cannot be read: {error.strerror}") from None
