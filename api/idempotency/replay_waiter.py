"""Short waits of retried calls: a response reaches the client before its row is written.

In that moment a retry would be refused because its key is in use, and a corrected request because
its key belongs to another one. Both wait for the row instead, but not for long: the duplicate of a
running call must not hold a connection.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias, TypeVar

from api import metrics
from api.runtime.database import Database
from api.views.progress_poller import ProgressPoller, ProgressSnapshot
from core.clock import Clock
from jobs.errors import IdempotencyKeyInFlightError, IdempotencyKeyReusedError

T = TypeVar("T")
Refusal: TypeAlias = IdempotencyKeyInFlightError | IdempotencyKeyReusedError

WAITING_MAX: Final = 1000
"""Waiting retries in this process; further ones are refused at once."""

_POLL_S: Final = 0.05  # one query for all waiting retries
_RUNNING: Final = ProgressSnapshot(0, is_terminal=False)


class ReplayWaiter:
    """Retries an operation whose idempotency key is in use."""

    def __init__(self, database: Database, clock: Clock, *, wait_s_max: float) -> None:
        self._clock, self._wait_s_max = clock, wait_s_max
        self._progress_poller = ProgressPoller(
            database, interval_s=_POLL_S, report_count=metrics.REPLAYS_WAITING.set
        )
        self._count = 0

    async def retry_until_free(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return what `attempt` returns once its key is neither locked nor held by a running call.

        Raises the last refusal after `wait_s_max`, and every other error of `attempt` at once.
        """
        return await self._retry(attempt, _is_temporary)

    async def retry_until_settled(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Like `retry_until_free`, but wait only for keys of durable calls."""
        return await self._retry(attempt, lambda refusal: refusal.job_id is not None)

    async def _retry(
        self, attempt: Callable[[], Awaitable[T]], is_temporary: Callable[[Refusal], bool]
    ) -> T:
        try:
            return await attempt()
        except (IdempotencyKeyInFlightError, IdempotencyKeyReusedError) as first:
            if not is_temporary(first) or self._count >= WAITING_MAX:
                raise
            refusal: Refusal = first
        self._count += 1
        deadline_s = self._clock.monotonic_s() + self._wait_s_max
        try:
            while (left_s := deadline_s - self._clock.monotonic_s()) > 0:
                await self._wait_for_change(refusal, left_s)
                try:
                    return await attempt()
                except (IdempotencyKeyInFlightError, IdempotencyKeyReusedError) as latest:
                    if not is_temporary(latest):
                        raise
                    refusal = latest
            raise refusal
        finally:
            self._count -= 1

    async def _wait_for_change(self, refusal: Refusal, left_s: float) -> None:
        """Wait for the row of a call, or for the transaction that locks the key."""
        if refusal.job_id is None:
            await asyncio.sleep(min(_POLL_S, left_s))
            return
        with self._progress_poller.subscribe(refusal.job_id, _RUNNING) as subscription:
            await subscription.wait_for_change(left_s)


def _is_temporary(refusal: Refusal) -> bool:
    return isinstance(refusal, IdempotencyKeyInFlightError) or refusal.job_id is not None
