"""The database's clock in a batcher: asked for now and then, counted on between by our monotonic.

An answer was true at some moment between question and answer; it is taken for that of the question,
so the estimate can only be early, by at most what the quickest of the latest questions took.
"""

import asyncio
import logging
from collections.abc import Callable

from core.clock import Clock
from core.database_time import DatabaseTime
from core.futures import in_daemon
from storage.postgres.engines import DATABASE_AWAY

_LOG = logging.getLogger(__name__)

READ_INTERVAL_S = 2.0
"""Between two questions."""

ReadDatabaseTime = Callable[[], float]
"""Blocking: the database's time, seconds since the epoch. Raises one of DATABASE_AWAY."""


class DatabaseClock:
    """A `Clock` whose wall is the database's as soon as that is known."""

    def __init__(self, clock: Clock, ask: ReadDatabaseTime | None) -> None:
        """Without `ask` the database's time is never known."""
        self._clock, self._ask = clock, ask
        self._time = DatabaseTime(min)

    def monotonic_s(self) -> float:
        """See `Clock`."""
        return self._clock.monotonic_s()

    def wall_s(self) -> float:
        """See `Clock`; this host's clock until the database has answered."""
        now_s = self.database_s()
        return self._clock.wall_s() if now_s is None else now_s

    def database_s(self) -> float | None:
        """Return the database's time, or None when it was never heard."""
        return self._time.now_s(self._clock.monotonic_s())

    async def follow(self) -> None:
        """Ask until cancelled; while the database is away the last answers count on."""
        if self._ask is None:
            return
        while True:
            asked_s = self._clock.monotonic_s()
            try:
                database_s = await in_daemon(self._ask, name="batcher-time")
                self._time.heard(database_s, monotonic_s=asked_s)
            except DATABASE_AWAY:
                _LOG.warning("the database's time is not known anew: it is away")
            await asyncio.sleep(READ_INTERVAL_S)
