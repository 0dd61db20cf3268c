"""Metrics of every role, and the server that Prometheus scrapes.

The server also tells an orchestrator whether the role is ready: `/readyz`.
"""

import socket
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Final, Protocol
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import Counter, Gauge
from prometheus_client.exposition import ThreadingWSGIServer, make_wsgi_app

from core.errors import SettingsError

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

ROLE_READY = Gauge("millrace_role_ready", "1 once this role does its work, 0 while it starts")
IS_READY: Final = threading.Event()
"""Set with `ROLE_READY`."""

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
    """Serve `/metrics` and `/readyz` if a port is set.

    Raises SettingsError for a port that cannot be used.
    """
    if settings.metrics_port is None:
        return
    try:
        server = make_server(
            settings.metrics_host,
            settings.metrics_port,
            readiness_app(make_wsgi_app()),
            _server_class(settings.metrics_host),
            handler_class=_SilentHandler,
        )
    except OSError as error:
        place = f"{settings.metrics_host}:{settings.metrics_port}"
        raise SettingsError(
            f"{settings.env_prefix}METRICS_PORT: cannot listen on {place}: {error.strerror}"
        ) from None
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()


def readiness_app(serve: "WSGIApplication") -> "WSGIApplication":
    """Return an app that answers `/readyz`, and passes every other path on.

    200 once the role has started, a replica with a warm model; else 503.
    """

    def answer(environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/readyz":
            return serve(environ, start)
        is_ready = IS_READY.is_set()
        status = "200 OK" if is_ready else "503 Service Unavailable"
        start(status, [("content-type", "text/plain; charset=utf-8")])
        return [b"ready\n" if is_ready else b"starting\n"]

    return answer


def _server_class(host: str) -> type[ThreadingWSGIServer]:
    """Return the class of a server that listens on an IPv4 or IPv6 address."""
    try:
        family = socket.getaddrinfo(host, None)[0][0]
    except OSError:
        family = socket.AF_INET

    class Server(ThreadingWSGIServer):
        address_family = family

    return Server


class _SilentHandler(WSGIRequestHandler):
    """Logs no request."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  its name there
        """Log nothing."""
