"""Calls that block, made by threads one after the other, and one last call behind all of them."""

import asyncio
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class BlockingCalls:
    """What one task does with one reader or writer of the object store.

    A thread cannot be cancelled: when the task is, its call goes on, and holds what it uses.
    """

    def __init__(self) -> None:
        """No call was made yet."""
        self._running: asyncio.Future[Any] | None = None  # the last that a thread was given

    async def make(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a call in a thread returns. One call is made at a time."""
        running = asyncio.ensure_future(asyncio.to_thread(call, *args, **kwargs))
        self._running = running
        return await asyncio.shield(running)

    async def end(self, call: Callable[[], object]) -> None:
        """Make the last call once no other runs; it is made also when this task is cancelled."""
        await asyncio.shield(asyncio.ensure_future(self._end(call)))

    async def _end(self, call: Callable[[], object]) -> None:
        if self._running is not None:
            # What it raised is told already, or its task was cancelled.
            await asyncio.gather(self._running, return_exceptions=True)
        await asyncio.to_thread(call)
