"""Deliveries that the producer's thread reports, awaited on the event loop."""

import asyncio


class Acknowledgements:
    """Counts the deliveries of one batch; one task waits for them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Expect nothing yet."""
        self._loop = loop
        self._open = 0
        self._failure: BaseException | None = None
        self._changed = asyncio.Event()

    def expect(self, count: int) -> None:
        """So many more deliveries will be reported; called before the loop gets its turn."""
        self._open += count

    def report(self, failure: BaseException | None) -> None:
        """A delivery succeeded or failed; from any thread."""
        self._loop.call_soon_threadsafe(self._settle, failure)

    async def wait(self) -> None:
        """Return when all is delivered. Raises the first failure."""
        while self._open > 0 and self._failure is None:
            self._changed.clear()
            await self._changed.wait()
        if self._failure is not None:
            raise self._failure

    def _settle(self, failure: BaseException | None) -> None:
        self._open -= 1
        self._failure = self._failure or failure
        self._changed.set()
