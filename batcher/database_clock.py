"""The database's clock as seen by a batcher: read periodically, advanced by the monotonic clock.

A reading is valid for some moment between request and response. It is recorded for the moment of
the request, so the estimate is never late, and early by at most the shortest recent round trip.
"""

import asyncio
import logging
from collections.abc import Callable

from core.clock import Clock, DatabaseTime
from core.runtime.futures import run_in_daemon_thread
from storage.postgres.engines import DATABASE_UNAVAILABLE

_LOG = logging.getLogger(__name__)

READ_INTERVAL_S = 2.0
"""Time between two readings."""

ReadDatabaseTime = Callable[[], float]
"""Blocking: returns the database's time, seconds since the epoch.

Raises one of DATABASE_UNAVAILABLE.
"""


class DatabaseClock:
    """A `Clock` whose wall time is the database's once the database has been read."""

    def __init__(self, clock: Clock, read: ReadDatabaseTime | None) -> None:
        """Without `read` the database's time stays unknown."""
        self._clock, self._read = clock, read
        self._time = DatabaseTime(min)

    def monotonic_s(self) -> float:
        """See `Clock`."""
        return self._clock.monotonic_s()

    def wall_s(self) -> float:
        """See `Clock`; this host's clock until the database has been read."""
        now_s = self.database_s()
        return self._clock.wall_s() if now_s is None else now_s

    def database_s(self) -> float | None:
        """Return the database's time, or None if it was never read."""
        return self._time.now_s(self._clock.monotonic_s())

    async def run(self) -> None:
        """Read the database's time until cancelled; earlier readings cover an outage."""
        if self._read is None:
            return
        while True:
            requested_s = self._clock.monotonic_s()
            try:
                database_s = await run_in_daemon_thread(self._read, name="batcher-time")
                self._time.add_sample(database_s, monotonic_s=requested_s)
            except DATABASE_UNAVAILABLE:
                _LOG.warning("the database's time is not known anew: it is away")
            await asyncio.sleep(READ_INTERVAL_S)
