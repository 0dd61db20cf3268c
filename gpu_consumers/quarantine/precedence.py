"""Who may go among batches that run apart: what has ended fewer processes, whosever it is.

A death has all that is left wait for the next owner. What is innocent has then the fewest deaths
to wait for, also what lies in one batch with poison while that of another batch is found.
"""

import asyncio


class Precedence:
    """The rank of each batch here, lowest first. For one event loop."""

    def __init__(self) -> None:
        """Nobody is here."""
        self._ranks: dict[object, int] = {}
        self._changed = asyncio.Event()

    def rank(self, who: object, rank: int) -> None:
        """Say how many processes the next of what is left of `who` has ended."""
        self._ranks[who] = rank
        self._tell()

    def leave(self, who: object) -> None:
        """Nothing is left of it."""
        self._ranks.pop(who, None)
        self._tell()

    async def turn(self, who: object) -> None:
        """Wait until nothing here has a lower rank."""
        while min(self._ranks.values()) < self._ranks[who]:
            await self._changed.wait()

    def _tell(self) -> None:
        self._changed.set()  # wakes whoever waits by now
        self._changed.clear()
