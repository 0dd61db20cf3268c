"""Where Prometheus reads a process."""

from typing import ClassVar, Protocol

from prometheus_client import start_http_server

from core.errors import SettingsError


class MetricsSettings(Protocol):
    """What a role's settings say of it."""

    env_prefix: ClassVar[str]

    @property
    def metrics_host(self) -> str:
        """The address to listen on."""
        ...

    @property
    def metrics_port(self) -> int | None:
        """None for no metrics, 0 for any free port."""
        ...


def serve_metrics(settings: MetricsSettings) -> None:
    """Let Prometheus read, when a port was given. Raises SettingsError for one that is not free."""
    if settings.metrics_port is None:
        return
    try:
        start_http_server(settings.metrics_port, settings.metrics_host)
    except OSError as error:
        place = f"{settings.metrics_host}:{settings.metrics_port}"
        raise SettingsError(
            f"{settings.env_prefix}METRICS_PORT: cannot listen on {place}: {error.strerror}"
        ) from None
