"""A start that a signal cuts short: what blocks runs in threads that nobody waits for."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

_STOP_POLL_S = 0.1

_CANCEL_S_MAX = 2.0
"""Time that work has to end once it is cancelled."""


async def ends_first(work: Coroutine[Any, Any, None], stop: threading.Event) -> bool:
    """Whether `work` ended before `stop` was set, which cancels it. Raises what it raised."""
    task = asyncio.create_task(work)
    while not task.done():
        if stop.is_set():
            task.cancel()
            await asyncio.wait([task], timeout=_CANCEL_S_MAX)
            return False
        await asyncio.wait([task], timeout=_STOP_POLL_S)
    task.result()
    return True


async def in_daemon(call: Callable[[], object]) -> None:
    """Run `call`, which blocks, in a thread that neither this loop's end nor the process waits for.

    Raises what it raised. Cancelled, it leaves the thread behind.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle(failure: BaseException | None) -> None:
        if done.done():
            return
        if failure is None:
            done.set_result(None)
        else:
            done.set_exception(failure)

    def run() -> None:
        failure: BaseException | None = None
        try:
            call()
        except Exception as error:  # noqa: BLE001 - handed on to whoever waits
            failure = error
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, failure)

    threading.Thread(target=run, name="batcher-start", daemon=True).start()
    await done
