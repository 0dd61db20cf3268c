"""Resolves futures whose waiter may be gone; runs blocking calls in daemon threads, and work that a
stop may cancel.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

T = TypeVar("T")

_STOP_POLL_S: Final = 0.1
_CANCEL_S_MAX: Final = 2.0
"""Time that work has to end once a stop has cancelled it."""


def resolve_future(
    future: asyncio.Future[Any], failure: BaseException | None, value: object = None
) -> None:
    """Set the future's exception, or its result when `failure` is None; call it on the loop.

    A future that is done, for example cancelled by its waiter, is not changed.
    """
    if future.done():
        return
    if failure is None:
        future.set_result(value)
    else:
        future.set_exception(failure)


def run_in_daemon_thread(call: Callable[[], T], *, name: str) -> asyncio.Future[T]:
    """Run a blocking `call` in a thread that neither the loop's nor the process's end waits for.

    The future raises the exception of `call`. When it is cancelled, the thread goes on. Raises
    RuntimeError when no thread can be started.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        value: T | None = None
        failure: Exception | None = None
        try:
            value = call()
        except Exception as error:  # noqa: BLE001  raised where the future is awaited
            failure = error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(resolve_future, done, failure, value)

    threading.Thread(target=run, name=name, daemon=True).start()
    return done


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
