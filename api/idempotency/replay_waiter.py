"""Short waits of repeated calls: an answer reaches its client before it reaches Postgres.

For that moment a repeat would be told that its key is in use, and a corrected request that the key
is another's. Both wait for the row instead, but not for long: a twin of a call that runs must not
hold a connection.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias, TypeVar

from api import metrics
from api.runtime.database import Database
from api.views.progress_poller import JobProgress, ProgressPoller
from core.clock import Clock
from jobs.errors import KeyInFlightError, KeyReusedError

T = TypeVar("T")
Refusal: TypeAlias = KeyInFlightError | KeyReusedError

WAITING_MAX: Final = 1000
"""Repeats that wait in this process; more are told at once."""

_LOOK_S: Final = 0.05  # one statement for all that wait
_RUNNING: Final = JobProgress(0, is_terminal=False)


class ReplayWaiter:
    """Tries again what found its key in use, as soon as that may have changed."""

    def __init__(self, database: Database, clock: Clock, *, wait_s_max: float) -> None:
        """Nobody waits yet."""
        self._clock, self._wait_s_max = clock, wait_s_max
        self._followers = ProgressPoller(
            database, interval_s=_LOOK_S, gauge=metrics.REPLAYS_WAITING
        )
        self._count = 0

    async def until_free(self, look: Callable[[], Awaitable[T]]) -> T:
        """Return what `look` returns, once its key is neither locked nor of a call that runs.

        Raises the last refusal after `wait_s_max`, and at once whatever else `look` raises.
        """
        return await self._until(look, _may_pass)

    async def until_settled(self, look: Callable[[], Awaitable[T]]) -> T:
        """As `until_free`, but wait for durable calls alone: others settle before they answer."""
        return await self._until(look, lambda refusal: refusal.job_id is not None)

    async def _until(
        self, look: Callable[[], Awaitable[T]], may_pass: Callable[[Refusal], bool]
    ) -> T:
        try:
            return await look()
        except (KeyInFlightError, KeyReusedError) as first:
            if not may_pass(first) or self._count >= WAITING_MAX:
                raise
            refusal: Refusal = first
        self._count += 1
        try:
            return await self._patiently(look, may_pass, refusal)
        finally:
            self._count -= 1

    async def _patiently(
        self,
        look: Callable[[], Awaitable[T]],
        may_pass: Callable[[Refusal], bool],
        refusal: Refusal,
    ) -> T:
        give_up_s = self._clock.monotonic_s() + self._wait_s_max
        while (left_s := give_up_s - self._clock.monotonic_s()) > 0:
            await self._change(refusal, left_s)
            try:
                return await look()
            except (KeyInFlightError, KeyReusedError) as again:
                if not may_pass(again):
                    raise
                refusal = again
        raise refusal

    async def _change(self, refusal: Refusal, left_s: float) -> None:
        """Wait for the row of a call; a key that is locked is free after a transaction."""
        if refusal.job_id is None:
            await asyncio.sleep(min(_LOOK_S, left_s))
            return
        with self._followers.follow(refusal.job_id, _RUNNING) as follower:
            await follower.changed(left_s)


def _may_pass(refusal: Refusal) -> bool:
    return isinstance(refusal, KeyInFlightError) or refusal.job_id is not None
