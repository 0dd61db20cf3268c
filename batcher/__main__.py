"""`python -m batcher`: run one Faust app for one job class."""

from core.runtime.garbage_collection import uncollected_imports

with uncollected_imports():
    import asyncio
    import logging
    import os
    import tempfile
    import threading
    from collections.abc import Mapping
    from functools import partial
    from pathlib import Path

    import uvloop

    from batcher.inbound.redelivered_items import FinishedItemLookup
    from batcher.queueing.queue_discipline import QueueDiscipline
    from batcher.role import BatcherDeps, run_batcher
    from batcher.settings import BatcherSettings
    from core.clock import SystemClock
    from core.commit_watermark import CommitWatch
    from core.runtime.logs import configure_logs
    from core.runtime.metrics import serve_metrics
    from core.runtime.role_lifecycle import run_role
    from core.runtime.shutdown import stop_on_signals
    from core.settings import read_all
    from storage.postgres.database_times import database_now_s
    from storage.postgres.engines import DATABASE_UNAVAILABLE, create_engine
    from storage.postgres.settings import DatabaseSettings
    from storage.postgres.watermark_row import raise_if_commits_lost
    from topics.settings import KafkaSettings

# Redelivered records wait for these queries, which only save repeated work.
_SHORT_TIMEOUTS = {
    "pool_size": 1,
    "pool_wait_s": 2.0,
    "connect_timeout_s": 2,
    "statement_timeout_s": 5.0,
}


def run(
    settings: BatcherSettings,
    kafka: KafkaSettings,
    database: DatabaseSettings | None,
    stop: threading.Event,
    discipline: QueueDiscipline | None = None,
) -> None:
    """Batch until `stop` is set. Raises MillraceError when the process must be restarted.

    `discipline` replaces the fair order of tenants and jobs.
    """
    clock = SystemClock()
    find_finished, read_database_time, check_commits = None, None, None
    if database is not None:
        short = database.model_copy(update=_SHORT_TIMEOUTS)
        engine = create_engine(short, application_name="batcher")
        find_finished = FinishedItemLookup(engine, clock)
        read_database_time = partial(database_now_s, engine)
        check_commits = partial(raise_if_commits_lost, engine, CommitWatch(clock))
    with tempfile.TemporaryDirectory(prefix="millrace-batcher-") as folder:
        deps = BatcherDeps(
            kafka=kafka,
            find_finished=find_finished,
            read_database_time=read_database_time,
            check_commits=check_commits,
            clock=clock,
            datadir=Path(folder),
            discipline=discipline,
        )
        # Set the policy, not only this loop: Faust's consumer thread creates its own loop.
        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
        asyncio.run(run_batcher(settings, deps, stop))


def run_from_env(
    env: Mapping[str, str], stop: threading.Event, discipline: QueueDiscipline | None = None
) -> None:
    """Batch with the settings in `env` until `stop` is set. Raises SettingsError, MillraceError."""
    settings, kafka, database = read_all(
        env, BatcherSettings.from_env, KafkaSettings.from_env, DatabaseSettings.from_env
    )
    serve_metrics(settings)
    run(settings, kafka, database, stop, discipline)


def main(discipline: QueueDiscipline | None = None) -> None:
    """Run until a signal; exit with the role's code."""
    configure_logs("batcher")
    stop = stop_on_signals()
    code = run_role(
        lambda: run_from_env(os.environ, stop, discipline), unavailable=DATABASE_UNAVAILABLE
    )
    # Faust can leave non-daemon threads behind that would keep the process alive.
    logging.shutdown()
    os._exit(code)


if __name__ == "__main__":
    main()
