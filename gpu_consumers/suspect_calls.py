"""Online calls that may have run before: a call that ends its process is answered so, not for ever.

Callers wait, so calls that came again run together at first. One that was in two executions that
ended with their process runs while no other suspect does, and is charged when that one ends so too.
"""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import msgspec

from core.errors import PoolUnavailableError
from gpu_consumers import metrics
from gpu_consumers.attempt_log import AttemptLog
from gpu_consumers.online_call import OnlineCall
from topics.records import Attempt, Unit

_ALONE_FROM = 2
"""Executions that ended with their process, after which a call runs alone."""


class SuspectCalls:
    """Lets calls run that may have run before, each told of on the log."""

    def __init__(self, log: AttemptLog, one_at_a_time: asyncio.Lock, *, crashes_max: int) -> None:
        """`one_at_a_time` is held by whoever alone may end the process, in any class."""
        self._log, self._alone, self._crashes_max = log, one_at_a_time, crashes_max

    @asynccontextmanager
    async def entered(self, call: OnlineCall) -> AsyncIterator[bool]:
        """Run the block as an execution of the call; False: it must not run, it is charged."""
        life, crashes = await self._before(call)
        if crashes >= self._crashes_max:
            metrics.ITEMS_CHARGED.labels("crash").inc()
            yield False
            await self._forget(call)
            return
        runs_alone = crashes >= _ALONE_FROM
        if runs_alone:
            await self._alone.acquire()
        try:
            try:
                await self._begin(call, life, crashes)
                yield True
            except PoolUnavailableError:
                await self._forget(call)
                raise
            except asyncio.CancelledError:
                if call.cut is not None:  # or else the process ends, and that counts
                    await self._forget(call)
                raise
            await self._forget(call)
        finally:
            if runs_alone:
                self._alone.release()

    async def let_go(self, calls: Collection[OnlineCall], *, lost: bool) -> None:
        """Leave what is told of calls to the next owner of their partitions. Raises DeliveryError.

        The last word is that they did not end us. Of `lost` ones their owner may have told by now.
        """
        for call in calls:
            call.has_moved = True
        if not lost:
            told = [call.attempt for call in calls if call.attempt is not None]
            put_down = [msgspec.structs.replace(attempt, is_running=False) for attempt in told]
            await asyncio.gather(*map(self._log.say, put_down))

    async def _begin(self, call: OnlineCall, life: int, crashes: int) -> None:
        if not call.has_moved:
            call.attempt = Attempt(call.request_id, life, [Unit(0, 1, crashes)], is_running=True)
            await self._log.say(call.attempt)

    async def _forget(self, call: OnlineCall) -> None:
        """Tell nothing more of the call; what the next owner told would go with it."""
        if not call.has_moved:
            call.attempt = None
            await self._log.forget(call.request_id)

    async def _before(self, call: OnlineCall) -> tuple[int, int]:
        """Return which owner this is, and the executions that ended with their process."""
        before = await self._log.before(call.request_id, call.generation)
        if before is None or not before.units:
            return 1, 1  # the first one was not told of
        return before.life + 1, before.units[0].crashes + before.is_running
