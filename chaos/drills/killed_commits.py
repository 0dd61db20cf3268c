"""APIs that are killed between the commit of a creation and its answer."""

import random
import threading
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from typing import Final, Self

import sqlalchemy as sa

from chaos.drills.context import DrillContext
from chaos.faults.healing import no_target
from chaos.faults.processes import kill

KILLS: Final = 4
_PAUSE_S: Final = 0.01
_SLOW_COMMITS: Final = """
CREATE FUNCTION chaos.slow_commit() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_sleep(0.2); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER chaos_slow_commit AFTER INSERT ON public.jobs
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION chaos.slow_commit();
"""
_COMMITS_AS_EVER: Final = """
DROP TRIGGER chaos_slow_commit ON public.jobs;
DROP FUNCTION chaos.slow_commit();
"""
_COMMITTING: Final = sa.text(
    "SELECT usename FROM pg_stat_activity WHERE wait_event = 'PgSleep' LIMIT 1"
)


class CommitKiller:
    """Kills APIs in the middle of a commit for a block, each when so many answers are there.

    The commit goes on without the API; its answer is lost.
    """

    def __init__(self, context: DrillContext, answered: Sized, wanted: int) -> None:
        """Nothing is killed yet."""
        self.count = 0
        self._setting, self._answered, self._wanted = context, answered, wanted
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._kill, daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._stop.set()
        self._thread.join()

    def _kill(self) -> None:
        chance = random.Random(self._setting.seed)
        for turn in range(KILLS):
            goal = (turn + chance.uniform(0.0, 0.7)) / KILLS * self._wanted
            host = None
            while host is None:
                if self._stop.wait(_PAUSE_S):
                    return
                if len(self._answered) >= goal:
                    host = self._committing()
            self.count += kill(self._setting.installation, f"{host}/api") is not no_target

    def _committing(self) -> str | None:
        """Return a host whose API waits for the end of a commit."""
        with self._setting.installation.engine.connect() as connection:
            user = connection.execute(_COMMITTING).scalar_one_or_none()
        return None if user is None else str(user).removeprefix("host_")


@contextmanager
def slow_commits(engine: sa.Engine) -> Iterator[None]:
    """Let every creation take a while to commit, so that a kill can fall there."""
    with engine.begin() as connection:
        connection.exec_driver_sql(_SLOW_COMMITS)
    try:
        yield
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql(_COMMITS_AS_EVER)
