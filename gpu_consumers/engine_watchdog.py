"""Ends a process whose engine, or whose event loop, does not react any more.

An engine cuts each item by itself. One that does not, because it hangs in a kernel, a lock or an
endless loop, keeps its partitions for ever: the group sees a member that lives. So the process ends
as by a crash, and what it ran is narrowed down by the next owner.
"""

import asyncio
import contextlib
import faulthandler
from collections.abc import AsyncIterator, Callable
from typing import Final

from core.clock import Clock
from core.errors import EngineStalledError
from gpu_consumers.engines.engine import Engine

LOOK_S: Final = 1.0


async def watch_progress(
    engine: Engine, ended_count: Callable[[], int], silence_s_max: float, clock: Clock
) -> None:
    """Look at the engine until cancelled.

    Raises EngineStalledError when items run, or could, for `silence_s_max`, and none ends and none
    is refused: more than the longest execution of one.
    """
    seen, since_s = (ended_count(), engine.slots.refused), clock.monotonic_s()
    while True:
        await asyncio.sleep(LOOK_S)
        now_s = clock.monotonic_s()
        slots = engine.slots
        now = ended_count(), slots.refused
        if now != seen or not (slots.bulk or slots.idle):
            seen, since_s = now, now_s
        elif now_s - since_s > silence_s_max:
            raise EngineStalledError(silent_s=round(now_s - since_s))


@contextlib.asynccontextmanager
async def ending_when_stuck(stuck_s_max: float) -> AsyncIterator[None]:
    """During a block, end the process with exit code 1 when its loop has no turn for so long.

    By a watch of the interpreter that needs no turn of Python itself; it writes where each thread
    was to stderr: names of functions, no values.
    """
    watch = asyncio.create_task(_rearm(stuck_s_max))
    try:
        yield
    finally:
        watch.cancel()
        await asyncio.wait([watch])


async def _rearm(stuck_s_max: float) -> None:
    try:
        while True:
            faulthandler.dump_traceback_later(stuck_s_max, exit=True)
            await asyncio.sleep(min(LOOK_S, stuck_s_max / 4))
    finally:
        faulthandler.cancel_dump_traceback_later()
