"""A rest of the lane of batches that a test holds in its hands."""

import asyncio
from collections.abc import Awaitable, Callable


class Rest:
    """The rest of what may end its process: it lasts until the test ends it."""

    LASTS_S = 77.0

    def __init__(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        self.begun, self._over, self._sleep = asyncio.Event(), asyncio.Event(), sleep

    async def sleep(self, seconds: float) -> None:
        if seconds != self.LASTS_S:
            return await self._sleep(seconds)
        self.begun.set()
        await self._over.wait()
        return None

    async def end_when(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await self._sleep(0)
        self._over.set()
