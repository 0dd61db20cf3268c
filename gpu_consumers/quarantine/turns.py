"""Batches run together, except those that run alone: nothing else of the lane runs beside them."""

import asyncio
from collections import deque


class Turns:
    """Lets many enter together, or one alone. Where some wait for either, they take turns."""

    def __init__(self) -> None:
        """Nobody is in."""
        self._together = 0
        self._empty = asyncio.Event()
        self._empty.set()
        self._alone = 0  # wants to be alone, or is
        self._first = asyncio.Lock()
        self._at_door: deque[asyncio.Future[None]] = deque()  # while some want to be alone

    async def enter(self) -> None:
        """Come in with others; each needs one `leave`."""
        if not self._alone:
            self._come_in()
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._at_door.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():
                self.leave()  # it was let in before it could go
            raise

    def leave(self) -> None:
        """Go out again."""
        self._together -= 1
        if not self._together:
            self._empty.set()

    async def enter_alone(self) -> None:
        """Come in when everybody has left; each needs one `leave_alone`."""
        self._alone += 1
        try:
            await self._first.acquire()
            try:
                await self._empty.wait()
            except asyncio.CancelledError:
                self._first.release()
                raise
        except asyncio.CancelledError:
            self._alone -= 1
            if not self._alone:
                self._let_in()
            raise

    def leave_alone(self) -> None:
        """Let in who waits at the door by now, and behind them the next one alone."""
        self._alone -= 1
        self._let_in()
        self._first.release()

    def _let_in(self) -> None:
        while self._at_door:
            place = self._at_door.popleft()
            if not place.done():  # nor cancelled
                self._come_in()
                place.set_result(None)

    def _come_in(self) -> None:
        self._together += 1
        self._empty.clear()
