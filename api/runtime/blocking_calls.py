"""Blocking calls that run in threads one after the other, and a last call after all others."""

import asyncio
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class BlockingCalls:
    """The calls of one task to one reader or writer of the object store.

    A thread cannot be cancelled. When the task is cancelled, its call continues and keeps what it
    uses.
    """

    def __init__(self) -> None:
        self._running: asyncio.Future[Any] | None = None  # the last call

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a call returns in a thread. Only one call runs at a time."""
        running = asyncio.ensure_future(asyncio.to_thread(call, *args, **kwargs))
        self._running = running
        return await asyncio.shield(running)

    async def run_last(self, call: Callable[[], object]) -> None:
        """Run the last call once no other runs, also when this task is cancelled."""
        await asyncio.shield(asyncio.ensure_future(self._run_last(call)))

    async def _run_last(self, call: Callable[[], object]) -> None:
        if self._running is not None:
            # Its error is reported already, or its task was cancelled.
            await asyncio.gather(self._running, return_exceptions=True)
        await asyncio.to_thread(call)
