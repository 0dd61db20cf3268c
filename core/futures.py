"""Futures that another thread settles, perhaps when nobody waits any more."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


def resolve_future(
    waited_for: asyncio.Future[Any], failure: BaseException | None, value: object = None
) -> None:
    """Let whoever waits go on with `value`, or raise `failure` there; on the loop.

    Nothing happens a second time, nor when whoever waited was cancelled.
    """
    if waited_for.done():
        return
    if failure is None:
        waited_for.set_result(value)
    else:
        waited_for.set_exception(failure)


def run_in_daemon_thread(call: Callable[[], T], *, name: str) -> asyncio.Future[T]:
    """Run `call`, which blocks, in a thread that neither this loop's end nor the process waits for.

    The future raises what it raised; cancelled, it leaves the thread behind. Raises RuntimeError
    when no thread can be started.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        value: T | None = None
        failure: Exception | None = None
        try:
            value = call()
        except Exception as error:  # noqa: BLE001  raised where it is waited for
            failure = error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(resolve_future, done, failure, value)

    threading.Thread(target=run, name=name, daemon=True).start()
    return done
