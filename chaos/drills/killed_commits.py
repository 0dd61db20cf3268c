"""Kills of API processes between the commit of a creation and its response."""

import random
import threading
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from typing import Final

import sqlalchemy as sa

from chaos.drills.context import DrillContext
from chaos.faults.healing import no_target
from chaos.faults.processes import kill_role

KILLS: Final = 4
_PAUSE_S: Final = 0.01
_SLOW_COMMITS: Final = """
CREATE FUNCTION chaos.slow_commit() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_sleep(0.2); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER chaos_slow_commit AFTER INSERT ON public.jobs
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION chaos.slow_commit();
"""
_RESTORE_COMMITS: Final = """
DROP TRIGGER chaos_slow_commit ON public.jobs;
DROP FUNCTION chaos.slow_commit();
"""
_COMMITTING: Final = sa.text(
    "SELECT usename FROM pg_stat_activity WHERE wait_event = 'PgSleep' LIMIT 1"
)


class CommitKiller:
    """Kills API processes in the middle of a commit, each after a number of responses.

    The commit succeeds without the API process; its response is lost.
    """

    def __init__(self, context: DrillContext, answered: Sized, total: int) -> None:
        """Prepare; `total` is the expected number of `answered`."""
        self.count = 0
        self._context, self._answered, self._total = context, answered, total

    def run(self, stop: threading.Event) -> None:
        """Kill until `stop` is set, at most `KILLS` times."""
        chance = random.Random(self._context.seed)
        for number in range(KILLS):
            goal = (number + chance.uniform(0.0, 0.7)) / KILLS * self._total
            host = None
            while host is None:
                if stop.wait(_PAUSE_S):
                    return
                if len(self._answered) >= goal:
                    host = self._committing_host()
            self.count += kill_role(self._context.installation, f"{host}/api") is not no_target

    def _committing_host(self) -> str | None:
        """Return a host whose API is waiting for a commit."""
        with self._context.engine.connect() as connection:
            user = connection.execute(_COMMITTING).scalar_one_or_none()
        return None if user is None else str(user).removeprefix("host_")


@contextmanager
def slow_commits(engine: sa.Engine) -> Iterator[None]:
    """Delay the commit of every created job during a block, so that kills can fall into it."""
    with engine.begin() as connection:
        connection.exec_driver_sql(_SLOW_COMMITS)
    try:
        yield
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql(_RESTORE_COMMITS)
