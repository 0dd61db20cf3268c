"""A start that a signal cuts short."""

import asyncio
import threading
from collections.abc import Awaitable

_STOP_POLL_S = 0.1

_CANCEL_S_MAX = 2.0
"""Time that work has to end once it is cancelled."""


async def completes_before_stop(work: Awaitable[object], stop: threading.Event) -> bool:
    """Whether `work` ended before `stop` was set, which cancels it. Raises what it raised."""
    task = asyncio.ensure_future(work)
    while not task.done():
        if stop.is_set():
            task.cancel()
            await asyncio.wait([task], timeout=_CANCEL_S_MAX)
            return False
        await asyncio.wait([task], timeout=_STOP_POLL_S)
    task.result()
    return True
