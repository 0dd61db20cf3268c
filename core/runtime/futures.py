"""Resolves asyncio futures whose waiter may be gone, and runs blocking calls in daemon threads."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


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
