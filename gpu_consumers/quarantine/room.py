"""So many items at once, in the order in which they come."""

import asyncio
from collections import deque


class Room:
    """Whoever does not fit waits; what is larger than the whole room has it for itself."""

    def __init__(self, item_count: int) -> None:
        """Nobody is in."""
        self._whole = self._left = item_count
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def enter(self, item_count: int) -> None:
        """Come in; each needs one `leave` with the same count."""
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((item_count, place))
        self._let_in()
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():
                self.leave(item_count)  # it was let in before it could go
            self._let_in()  # who waits behind it may fit
            raise

    def leave(self, item_count: int) -> None:
        """Go out again."""
        self._left += min(item_count, self._whole)
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting:
            item_count, place = self._waiting[0]
            needed = min(item_count, self._whole)
            if not place.done() and needed > self._left:
                return
            self._waiting.popleft()
            if not place.done():
                self._left -= needed
                place.set_result(None)
