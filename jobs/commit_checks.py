"""Checks the watermark of commits in roles that use Postgres and do not read `control`."""

from contextlib import suppress
from functools import partial

import sqlalchemy as sa

from core.clock import Clock
from core.commit_watermark import CHECK_INTERVAL_S, CommitsLostError, CommitWatch
from jobs.supervised_threads import SupervisedThreads
from storage.postgres.engines import DATABASE_UNAVAILABLE
from storage.postgres.watermark_row import raise_if_commits_lost


def start_commit_checks(threads: SupervisedThreads, engine: sa.Engine, clock: Clock) -> None:
    """Check now, and then in a thread; a role that reads the log records a loss in the database.

    Raises CommitsLostError if it is recorded there already, after closing the connections.
    """
    check = partial(raise_if_commits_lost, engine, CommitWatch(clock))
    try:
        with suppress(*DATABASE_UNAVAILABLE):
            check()
    except CommitsLostError:
        engine.dispose()
        raise
    threads.start_periodic(CHECK_INTERVAL_S, "watermark", check)
