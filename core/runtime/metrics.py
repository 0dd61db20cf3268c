"""Metrics of every role, and the server that Prometheus scrapes."""

from typing import ClassVar, Protocol

from prometheus_client import Counter, Gauge, start_http_server

from core.errors import SettingsError

ROLE_READY = Gauge("millrace_role_ready", "1 once this role does its work, 0 while it starts")
WRITES_REFUSED = Counter(
    "millrace_lease_writes_refused_total",
    "Writes of this process that were refused, as another held their lease.",
    ["role"],
)


class MetricsSettings(Protocol):
    """The metrics part of a role's settings."""

    env_prefix: ClassVar[str]

    @property
    def metrics_host(self) -> str:
        """The address to listen on."""
        ...

    @property
    def metrics_port(self) -> int | None:
        """None disables metrics, 0 chooses any free port."""
        ...


def serve_metrics(settings: MetricsSettings) -> None:
    """Serve metrics if a port is set. Raises SettingsError for a port that cannot be used."""
    if settings.metrics_port is None:
        return
    try:
        start_http_server(settings.metrics_port, settings.metrics_host)
    except OSError as error:
        place = f"{settings.metrics_host}:{settings.metrics_port}"
        raise SettingsError(
            f"{settings.env_prefix}METRICS_PORT: cannot listen on {place}: {error.strerror}"
        ) from None
