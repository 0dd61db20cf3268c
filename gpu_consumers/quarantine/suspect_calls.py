"""Online calls that may have run before: a call that ends its process is answered so, not for ever.

Callers wait, so calls that came again run together at first. One that was in two executions that
ended with their process runs while no other such call or item does, and is charged when that one
ends so too and nothing else was in the engine; else it has the engine for itself, for a while.
"""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import msgspec

from core.errors import PoolUnavailableError
from gpu_consumers import metrics
from gpu_consumers.inflight.online_call import OnlineCall
from gpu_consumers.quarantine.attempt_log import AttemptLog
from gpu_consumers.quarantine.crash_attribution import Say, Trials
from gpu_consumers.quarantine.narrowing import is_charged
from topics.records.records import AttemptUnit, BatchAttempt

_ALONE_FROM = 2
"""Executions that ended with their process, after which a call runs alone."""


class SuspectCalls:
    """Lets calls run that may have run before, each told of on the log."""

    def __init__(self, log: AttemptLog, trials: Trials, *, crashes_max: int) -> None:
        """`trials` are those of all classes."""
        self._log, self._trials, self._crashes_max = log, trials, crashes_max

    def beside(self) -> AbstractAsyncContextManager[None]:
        """Run the block as the execution of a call that is new. Raises DeliveryError."""
        return self._trials.beside()

    @asynccontextmanager
    async def entered(self, call: OnlineCall) -> AsyncIterator[bool]:
        """Run the block as an execution of the call; False: it must not run, it is charged.

        Of one that is charged the log tells until `ended`: it would be run again else, had the
        process ended before that was said.
        """
        life, crashes, is_over = await self._before(call)
        if is_over:
            metrics.ITEMS_CHARGED.labels("crash").inc()
            call.is_charged = True
            yield False
            return
        begin = partial(self._begin, call, life, crashes)
        async with self._turn(crashes):
            try:
                async with self._in_engine(begin, is_on_trial=crashes >= _ALONE_FROM):
                    yield True
            except PoolUnavailableError:
                await self._forget(call)
                raise
            except asyncio.CancelledError:
                if call.cut is not None:  # or else the process ends, and that counts
                    await self._forget(call)
                raise
            await self._forget(call)

    @asynccontextmanager
    async def _turn(self, crashes: int) -> AsyncIterator[None]:
        if crashes < _ALONE_FROM:
            yield
            return
        with self._trials.danger():
            await self._trials.take_turn(empties=crashes >= self._crashes_max)
            try:
                yield
            finally:
                self._trials.end_turn()

    @asynccontextmanager
    async def _in_engine(self, begin: Say, *, is_on_trial: bool) -> AsyncIterator[None]:
        """Told of only once it may come in: a death until then is none of its executions."""
        if is_on_trial:
            async with self._trials.on_trial(begin):
                yield
        else:
            async with self._trials.beside():
                await begin(False)
                yield

    async def ended(self, call: OnlineCall) -> None:
        """Tell nothing more of a call whose end is on the log. Raises DeliveryError."""
        if call.is_charged:
            await self._forget(call)

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

    async def _begin(self, call: OnlineCall, life: int, crashes: int, in_company: bool) -> None:
        if not call.has_moved:
            units = [AttemptUnit(0, 1, crashes)]
            call.attempt = BatchAttempt(call.request_id, life, units, True, in_company)
            await self._log.say(call.attempt)

    async def _forget(self, call: OnlineCall) -> None:
        """Tell nothing more of the call; what the next owner told would go with it."""
        if not call.has_moved:
            call.attempt = None
            await self._log.forget(call.request_id)

    async def _before(self, call: OnlineCall) -> tuple[int, int, bool]:
        """Return which owner this is, how many executions ended so, and whether it is charged."""
        before = await self._log.before(call.request_id, call.generation)
        if before is None or not before.units:
            return 1, 1, False  # the first one was not told of
        crashes = before.units[0].crashes + before.is_running
        is_over = before.is_running and is_charged(
            crashes, in_company=before.in_company, crashes_max=self._crashes_max
        )
        return before.life + 1, crashes, is_over
