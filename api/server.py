"""The HTTP server around the application, with every bound that uvicorn leaves open."""

import uvicorn
from starlette.types import ASGIApp

from api.http_protocol import http_protocol
from api.settings import ApiSettings


def http_server(app: ASGIApp, settings: ApiSettings) -> uvicorn.Server:
    """Return a server; `run` ends after SIGTERM or SIGINT, requests in flight first."""
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
    return uvicorn.Server(config)
