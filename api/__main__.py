"""The API role: `python -m api`."""

from core.runtime.garbage_collection import uncollected_imports

with uncollected_imports():
    import logging
    import os
    import sys
    import threading
    from collections.abc import Mapping
    from typing import Final

    from api.app import create_app
    from api.http.uvicorn_server import http_server
    from api.online.online_runtime import OnlineDeps
    from api.online.settings import OnlineSettings
    from api.settings import ApiSettings
    from core.bodies.body_limit_settings import BodyLimits
    from core.clock import SystemClock
    from core.errors import MillraceError
    from core.runtime.logs import configure_logs
    from core.runtime.metrics import serve_metrics
    from core.runtime.open_files import request_open_file_limit
    from core.runtime.role_lifecycle import report_ready, run_role
    from core.runtime.shutdown import stop_on_signals
    from core.settings import read_all
    from results.webhooks.settings import WebhookSettings
    from storage.objects.open_store import object_store_from_env
    from storage.postgres.engines import DATABASE_UNAVAILABLE, create_engine
    from storage.postgres.settings import DatabaseSettings
    from topics.clients.admin import TopicAdmin
    from topics.clients.start_check import check_topics, topics_of_role
    from topics.settings import KafkaSettings

log = logging.getLogger("api")

_SWITCH_INTERVAL_S: Final = 0.0005
"""Interval of thread switches: replies must not wait the default 5 ms for the event loop."""

_BROKER_WAIT_S: Final = 600.0

_OTHER_FILES_MAX: Final = 256
"""Files that are not client connections: Postgres, the log, the object store, own files."""


def main(env: Mapping[str, str]) -> int:
    """Serve until a signal; return the exit code."""
    configure_logs("api")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    return run_role(lambda: serve(env), unavailable=DATABASE_UNAVAILABLE)


def serve(env: Mapping[str, str]) -> None:
    """Serve until SIGTERM or SIGINT, then complete requests in flight.

    Raises SettingsError, and the failure that stopped the process.
    """
    settings, database, online, kafka, objects, webhooks, body_limits = read_all(
        env,
        ApiSettings.from_env,
        DatabaseSettings.from_env,
        OnlineSettings.from_env,
        KafkaSettings.from_env,
        object_store_from_env,
        WebhookSettings.from_env,
        BodyLimits.from_env,
    )
    request_open_file_limit(open_files_max(settings, online))
    failures: list[MillraceError] = []

    def stop_with(failure: MillraceError) -> None:
        failures.append(failure)
        server.should_exit = True

    app = create_app(
        settings,
        create_engine(database, application_name="millrace-api"),
        objects,
        database_threads=database.pool_size,
        clock=SystemClock(),
        online_deps=OnlineDeps(online, kafka, stop_with, body_limits),
        webhooks=webhooks,
    )
    # uvicorn handles the signals while it runs, and raises them again afterwards.
    server = http_server(app, settings, stop_on_signals())
    serve_metrics(settings)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    threading.Thread(target=report_wrong_topics, args=(kafka,), daemon=True).start()
    log.info("listening", extra={"host": settings.host, "port": settings.port})
    report_ready()
    server.run()
    if failures:
        raise failures[0]


def report_wrong_topics(kafka: KafkaSettings) -> None:
    """Log how topics differ from the catalogue; this role also serves without Kafka."""
    try:
        check_topics(TopicAdmin(kafka), topics_of_role("api"), broker_wait_s=_BROKER_WAIT_S)
    except MillraceError as failure:
        extra = {"code": failure.code, "reason": str(failure)}
        log.warning("topics are not as the catalogue says", extra=extra)


def open_files_max(settings: ApiSettings, online: OnlineSettings) -> int:
    """Return the number of files for all accepted connections, including those to be refused."""
    # Twice as many online requests as open calls are read before one is refused.
    others = settings.requests_in_flight_max + settings.followers_max + _OTHER_FILES_MAX
    return 2 * online.open_calls_max + others


if __name__ == "__main__":
    exit_code = main(os.environ)
    # A thread that waits for Postgres, the object store or the log would keep the process alive.
    logging.shutdown()
    os._exit(exit_code)
