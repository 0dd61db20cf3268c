"""The API role: `python -m api`."""

import os
from collections.abc import Mapping

import uvicorn
from prometheus_client import start_http_server

from api.app import create_app
from api.http_protocol import http_protocol
from api.settings import ApiSettings
from core.clock import SystemClock
from core.logs import configure_logs
from storage.objects_from import object_store_from_env
from storage.postgres import create_engine
from storage.settings import DatabaseSettings


def main(env: Mapping[str, str]) -> None:
    """Serve until SIGTERM or SIGINT, then let requests in flight end. Raises SettingsError."""
    configure_logs("api")
    settings = ApiSettings.from_env(env)
    database = DatabaseSettings.from_env(env)
    app = create_app(
        settings,
        create_engine(database, application_name="millrace-api"),
        object_store_from_env(env),
        database_threads=database.pool_size,
        clock=SystemClock(),
    )
    if settings.metrics_port is not None:
        start_http_server(settings.metrics_port, settings.metrics_host)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=http_protocol(settings.head_timeout_s),
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=settings.head_bytes_max,
        timeout_keep_alive=settings.keep_alive_s,
        timeout_graceful_shutdown=settings.shutdown_grace_s,
    )
    uvicorn.Server(config).run()


if __name__ == "__main__":
    main(os.environ)
