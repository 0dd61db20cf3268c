"""A suspect delay of the quarantine whose end a test decides."""

import asyncio
from collections.abc import Awaitable, Callable


class SuspectDelay:
    """Replaces the sleep of `DELAY_S` seconds by an event."""

    DELAY_S = 77.0

    def __init__(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        self.has_started, self._end, self._sleep = asyncio.Event(), asyncio.Event(), sleep

    async def sleep(self, seconds: float) -> None:
        if seconds != self.DELAY_S:
            return await self._sleep(seconds)
        self.has_started.set()
        await self._end.wait()
        return None

    async def end_when(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await self._sleep(0)
        self._end.set()
