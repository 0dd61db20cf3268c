"""Limits the execution time of one item, whatever its engine does with a cancellation.

vLLM answers a cancelled call with a refusal. Taken for the item's answer, it would fail an item
that was only slow or is requeued.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from core.errors import EngineStalledError

T = TypeVar("T")

LIVENESS_TIMEOUT_S: Final = 60.0
"""How long a liveness check may take: longer than one step of a large model on a CPU. With bulk
items in execution the engine watchdog is stricter."""


class ItemTimeout:
    """The longest execution of one item, by an engine with a liveness check."""

    def __init__(
        self,
        limit_s: float,
        check_liveness: Callable[[], Awaitable[object]],
        *,
        liveness_timeout_s: float = LIVENESS_TIMEOUT_S,
    ) -> None:
        """`check_liveness` returns when the engine responds, after its current work."""
        self._limit_s, self._liveness_timeout_s = limit_s, liveness_timeout_s
        self._check_liveness = check_liveness

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns, raise what it raises; its end is awaited in any case.

        Cancelling raises CancelledError even if the work returns. Raises TimeoutError when the item
        took too long, and EngineStalledError when in addition the engine does not respond.
        """
        task = asyncio.create_task(work)
        try:
            await asyncio.wait([task], timeout=self._limit_s)
        except asyncio.CancelledError:
            await _cancel(task)
            raise
        if task.done():
            return task.result()
        await _cancel(task)
        await self._require_liveness()
        raise TimeoutError

    async def _require_liveness(self) -> None:
        """Distinguish a slow item from a stalled engine, whose items must not be charged."""
        try:
            async with asyncio.timeout(self._liveness_timeout_s):
                await self._check_liveness()
        except TimeoutError:
            silent_s = round(self._limit_s + self._liveness_timeout_s)
            raise EngineStalledError(silent_s=silent_s) from None


async def _cancel(task: asyncio.Task[Any]) -> None:
    """Cancel and wait; the result is discarded."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # otherwise asyncio logs that it was never retrieved
