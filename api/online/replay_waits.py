"""Short waits of repeated calls: an answer reaches its client before it reaches Postgres.

For that moment a repeat would be told that its key is in use. It waits for the row instead, but not
for long: a twin of a call that runs must not hold a connection.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from api import metrics
from api.database import Database
from api.online.durable_transactions import CallInFlightError
from api.views.following import Followers, JobNews
from core.clock import Clock
from jobs.refusals import KeyInFlightError

T = TypeVar("T")

WAITING_MAX: Final = 1000
"""Repeats that wait in this process; more are told at once."""

_LOOK_S: Final = 0.05  # one statement for all that wait
_RUNNING: Final = JobNews(0, is_terminal=False)


class ReplayWaits:
    """Tries again what found its key in use, as soon as that may have changed."""

    def __init__(self, database: Database, clock: Clock, *, wait_s_max: float) -> None:
        """Nobody waits yet."""
        self._clock, self._wait_s_max = clock, wait_s_max
        self._followers = Followers(database, interval_s=_LOOK_S, gauge=metrics.REPLAYS_WAITING)
        self._count = 0

    async def until_free(self, look: Callable[[], Awaitable[T]]) -> T:
        """Return what `look` returns, once it raises no KeyInFlightError.

        Raises that after `wait_s_max`, and whatever else `look` raises.
        """
        try:
            return await look()
        except KeyInFlightError as in_flight:
            if self._count >= WAITING_MAX:
                raise
            failure = in_flight
        self._count += 1
        try:
            return await self._patiently(look, failure)
        finally:
            self._count -= 1

    async def _patiently(self, look: Callable[[], Awaitable[T]], failure: KeyInFlightError) -> T:
        give_up_s = self._clock.monotonic_s() + self._wait_s_max
        while (left_s := give_up_s - self._clock.monotonic_s()) > 0:
            await self._change(failure, left_s)
            try:
                return await look()
            except KeyInFlightError as in_flight:
                failure = in_flight
        raise failure

    async def _change(self, failure: KeyInFlightError, left_s: float) -> None:
        """Wait for the row of a call; a key that is locked is free after a transaction."""
        if not isinstance(failure, CallInFlightError):
            await asyncio.sleep(min(_LOOK_S, left_s))
            return
        with self._followers.follow(failure.job_id, _RUNNING) as follower:
            await follower.changed(left_s)
