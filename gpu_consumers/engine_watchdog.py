"""Ends the process when its engine or its event loop hangs.

An engine stops each item at its time limit. An engine that cannot, because it hangs in a kernel, a
lock or an endless loop, would keep its partitions for ever, because its group member stays alive.
So the process ends as in a crash, and quarantine narrows down the items that were running.
"""

import asyncio
import contextlib
import faulthandler
from collections.abc import AsyncIterator, Callable
from typing import Final

from core.clock import Clock
from core.errors import EngineStalledError
from gpu_consumers.engines.engine import Engine

CHECK_S: Final = 1.0


async def watch_progress(
    engine: Engine, ended_count: Callable[[], int], silence_s_max: float, clock: Clock
) -> None:
    """Check the engine until cancelled.

    Raises EngineStalledError when items run, or could run, and for `silence_s_max` none has ended
    or been refused. The limit must exceed the longest execution of one item.
    """
    last, changed_s = (ended_count(), engine.slots.refused), clock.monotonic_s()
    while True:
        await asyncio.sleep(CHECK_S)
        now_s = clock.monotonic_s()
        slots = engine.slots
        progress = ended_count(), slots.refused
        if progress != last or not (slots.bulk or slots.idle):
            last, changed_s = progress, now_s
        elif now_s - changed_s > silence_s_max:
            raise EngineStalledError(silent_s=round(now_s - changed_s))


@contextlib.asynccontextmanager
async def exit_when_stuck(stuck_s_max: float) -> AsyncIterator[None]:
    """During the block, exit with code 1 when the event loop does not run for `stuck_s_max`.

    The timer of `faulthandler` does not need the interpreter lock. It writes the stacks of all
    threads to stderr: names of functions, no values.
    """
    watchdog = asyncio.create_task(_rearm_timer(stuck_s_max))
    try:
        yield
    finally:
        watchdog.cancel()
        await asyncio.wait([watchdog])


async def _rearm_timer(stuck_s_max: float) -> None:
    try:
        while True:
            faulthandler.dump_traceback_later(stuck_s_max, exit=True)
            await asyncio.sleep(min(CHECK_S, stuck_s_max / 4))
    finally:
        faulthandler.cancel_dump_traceback_later()
