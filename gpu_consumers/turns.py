"""Batches run together, except those that run alone: nothing else of the lane runs beside them."""

import asyncio


class Turns:
    """Lets many enter together, or one alone. Who wants to be alone goes ahead of newcomers."""

    def __init__(self) -> None:
        """Nobody is in."""
        self._together = 0
        self._alone = 0  # wants to be alone, or is
        self._door = asyncio.Event()
        self._door.set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._first = asyncio.Lock()

    async def enter(self) -> None:
        """Come in with others; each needs one `leave`."""
        while self._alone:
            await self._door.wait()
        self._together += 1
        self._empty.clear()

    def leave(self) -> None:
        """Go out again."""
        self._together -= 1
        if not self._together:
            self._empty.set()

    async def enter_alone(self) -> None:
        """Come in when everybody has left; each needs one `leave_alone`."""
        self._alone += 1
        self._door.clear()
        try:
            await self._first.acquire()
            try:
                await self._empty.wait()
            except asyncio.CancelledError:
                self._first.release()
                raise
        except asyncio.CancelledError:
            self._let_in()
            raise

    def leave_alone(self) -> None:
        """Let the next one in, or all the others."""
        self._first.release()
        self._let_in()

    def _let_in(self) -> None:
        self._alone -= 1
        if not self._alone:
            self._door.set()
