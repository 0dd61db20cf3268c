"""The HTTP server, with the limits that uvicorn leaves open."""

import socket
import threading

import uvicorn
from starlette.types import ASGIApp

from api.http.http_protocol import http_protocol
from api.settings import ApiSettings


class HttpServer(uvicorn.Server):
    """Serves until a signal, including one that arrived before uvicorn installed its handlers."""

    def __init__(self, config: uvicorn.Config, stop: threading.Event) -> None:
        """`stop` is set by signals until uvicorn installs its handlers."""
        super().__init__(config)
        self._stop = stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See `uvicorn.Server`. uvicorn's signal handlers are installed by now."""
        await super().startup(sockets)
        if self._stop.is_set():
            self.should_exit = True


def http_server(
    app: ASGIApp, settings: ApiSettings, stop: threading.Event | None = None
) -> HttpServer:
    """Return a server. After SIGTERM or SIGINT, `run` completes requests in flight and returns.

    `stop` is set by signals that arrive before the server starts.
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
        log_config=None,  # core.logs configures every logger
        server_header=False,
        proxy_headers=False,  # nothing depends on the client's address
        timeout_keep_alive=settings.keep_alive_s,
        timeout_graceful_shutdown=settings.shutdown_grace_s,
    )
    return HttpServer(config, stop or threading.Event())
