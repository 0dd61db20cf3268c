"""Start-up work that a stop signal cancels."""

import asyncio
import threading
from collections.abc import Awaitable

_STOP_POLL_S = 0.1

_CANCEL_S_MAX = 2.0
"""Time that cancelled work has to end."""


async def completes_before_stop(work: Awaitable[object], stop: threading.Event) -> bool:
    """Return True once `work` completes, or cancel it when `stop` is set and return False.

    Raises what `work` raises.
    """
    task = asyncio.ensure_future(work)
    while not task.done():
        if stop.is_set():
            task.cancel()
            await asyncio.wait([task], timeout=_CANCEL_S_MAX)
            return False
        await asyncio.wait([task], timeout=_STOP_POLL_S)
    task.result()
    return True
