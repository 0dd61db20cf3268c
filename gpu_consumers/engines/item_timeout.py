"""Cuts an item off at its limit, whatever its engine makes of a cancellation.

vLLM answers a cancelled call: a refusal to a client that is gone. Taken for the item's answer it
would fail an item that was only slow, or that goes back to be run elsewhere.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from core.errors import EngineStalledError

T = TypeVar("T")

LIVENESS_TIMEOUT_S: Final = 60.0
"""How long an engine may take for a sign of life: longer than one step of a large model on a CPU.
Beside bulk items the watch of the whole engine is stricter."""


class ItemTimeout:
    """The longest execution of one item by an engine that can be asked for a sign of life."""

    def __init__(
        self,
        limit_s: float,
        sign_of_life: Callable[[], Awaitable[object]],
        *,
        reaction_s: float = LIVENESS_TIMEOUT_S,
    ) -> None:
        """`sign_of_life` returns when the engine, behind the work that it does, reacts."""
        self._limit_s, self._reaction_s = limit_s, reaction_s
        self._sign_of_life = sign_of_life

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns, raise what it raises; its end is awaited in any case.

        Cancelling raises CancelledError, though the work may return. Raises TimeoutError when it
        took too long, and EngineStalledError when it did and the engine gives no sign of life.
        """
        task = asyncio.create_task(work)
        try:
            await asyncio.wait([task], timeout=self._limit_s)
        except asyncio.CancelledError:
            await _end(task)
            raise
        if task.done():
            return task.result()
        await _end(task)
        await self._require_life()
        raise TimeoutError

    async def _require_life(self) -> None:
        """Tell slow from frozen before the item is charged: of a frozen engine each would be."""
        try:
            async with asyncio.timeout(self._reaction_s):
                await self._sign_of_life()
        except TimeoutError:
            silent_s = round(self._limit_s + self._reaction_s)
            raise EngineStalledError(silent_s=silent_s) from None


async def _end(task: asyncio.Task[Any]) -> None:
    """Cancel and wait. What comes of it is nobody's answer."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # else asyncio reports it as never looked at
