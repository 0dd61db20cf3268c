"""The HTTP server around the application, with every bound that uvicorn leaves open."""

import socket
import threading

import uvicorn
from starlette.types import ASGIApp

from api.http.http_protocol import http_protocol
from api.settings import ApiSettings


class HttpServer(uvicorn.Server):
    """Serves until a signal, also one that came before it took the signals."""

    def __init__(self, config: uvicorn.Config, stop: threading.Event) -> None:
        """`stop` is set by signals until this server takes them."""
        super().__init__(config)
        self._stop = stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See `uvicorn.Server`: the signals are taken by now."""
        await super().startup(sockets)
        if self._stop.is_set():
            self.should_exit = True


def http_server(
    app: ASGIApp, settings: ApiSettings, stop: threading.Event | None = None
) -> HttpServer:
    """Return a server; `run` ends after SIGTERM or SIGINT, requests in flight first.

    `stop` is what signals set that come before.
    """
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=http_protocol(
            head_timeout_s=settings.head_timeout_s, head_bytes_max=settings.head_bytes_max
        ),
        loop="uvloop",
        ws="none",
        access_log=False,
        log_config=None,  # core.logs has configured every logger
        server_header=False,
        proxy_headers=False,  # nothing we decide depends on where a request came from
        timeout_keep_alive=settings.keep_alive_s,
        timeout_graceful_shutdown=settings.shutdown_grace_s,
    )
    return HttpServer(config, stop or threading.Event())
