"""Calls of the object store in threads, which cannot be cancelled."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

from core.errors import MillraceError
from storage.objects.errors import ObjectStoreUnavailableError
from storage.objects.object_store import ObjectStore

P = ParamSpec("P")
T = TypeVar("T")

DELETIONS_MAX: Final = 1000
"""Deletions in progress, for each ObjectDeletions."""

_DELETE_S_MAX: Final = 2.0  # a deletion that takes longer is left to the orphan sweep
_SHUTDOWN_S: Final = 1.0
"""How long a shutdown waits for running calls.

Later it abandons them. The orphan sweep deletes the objects and uploads that they leave behind.
"""


class _Waiting:
    """A call that has no thread yet."""


class ObjectThreadPool(ThreadPoolExecutor):
    """The default executor of the event loop, with a shutdown that does not wait for ever.

    Otherwise a hanging store would keep the process alive.
    """

    def __init__(self, count: int) -> None:
        """Up to `count` threads, started as they are needed."""
        super().__init__(count, thread_name_prefix="objects")
        self._waiting_max = count
        self._waiting: set[_Waiting] = set()
        self._lock = threading.Lock()

    def require_capacity(self) -> None:
        """Raise ObjectStoreUnavailableError while more calls wait than there are threads.

        Requests call it before their first call. A store that throttles keeps each thread for
        seconds: requests that queued for it would fill the limit of requests in flight, and those
        that need no store would be refused.
        """
        if len(self._waiting) > self._waiting_max:
            raise ObjectStoreUnavailableError

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """See `ThreadPoolExecutor`."""
        waiting = _Waiting()

        def run() -> Any:
            self._forget(waiting)
            return fn(*args, **kwargs)

        with self._lock:
            self._waiting.add(waiting)
        future = super().submit(run)
        future.add_done_callback(lambda _: self._forget(waiting))  # it may have been cancelled
        return future

    def _forget(self, waiting: "_Waiting") -> None:
        with self._lock:
            self._waiting.discard(waiting)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See `ThreadPoolExecutor`; waits for at most _SHUTDOWN_S."""
        options = {"wait": wait, "cancel_futures": cancel_futures}
        ending = threading.Thread(target=super().shutdown, kwargs=options, daemon=True)
        ending.start()
        ending.join(_SHUTDOWN_S)


class BlockingCalls:
    """The calls of one task to one reader or writer of the object store.

    A thread cannot be cancelled. When the task is cancelled, its call continues and keeps what it
    uses.
    """

    def __init__(self) -> None:
        self._running: asyncio.Future[Any] | None = None  # the last call

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a call returns in a thread. Only one call runs at a time."""
        running = asyncio.ensure_future(asyncio.to_thread(call, *args, **kwargs))
        self._running = running
        return await asyncio.shield(running)

    async def run_last(self, call: Callable[[], object]) -> None:
        """Run the last call once no other runs, also when this task is cancelled."""
        await asyncio.shield(asyncio.ensure_future(self._run_last(call)))

    async def _run_last(self, call: Callable[[], object]) -> None:
        if self._running is not None:
            # Its error is reported already, or its task was cancelled.
            await asyncio.gather(self._running, return_exceptions=True)
        await asyncio.to_thread(call)


async def run_in_store_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what `call` returns, from one of the threads for the object store.

    While the store hangs, calls wait for a thread together with the megabytes they will write.
    Cancelling the caller frees those of a call that has not started. Raises what `call` raises.
    """
    pending = deque([partial(call, *args, **kwargs)])  # `pop` is atomic

    def run() -> T:
        return pending.pop()()  # raises IndexError after a cancellation; nobody awaits it

    try:
        return await asyncio.to_thread(run)
    finally:
        pending.clear()


async def delete_object(objects: ObjectStore, key: str) -> bool:
    """Delete an object, within a time limit; return whether it is deleted.

    A sweep deletes it otherwise. A client that needs no more than that does not wait for the store.
    """
    with suppress(MillraceError, TimeoutError):
        async with asyncio.timeout(_DELETE_S_MAX):
            await run_in_store_thread(objects.delete, key)
            return True
    return False


class ObjectDeletions:
    """Deletes objects in the background. All methods run on the event loop."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._tasks: set[asyncio.Task[bool]] = set()

    def start(self, key: str) -> None:
        """Start to delete an object. Beyond DELETIONS_MAX it is left to the orphan sweep."""
        if len(self._tasks) >= DELETIONS_MAX:
            return
        task = asyncio.ensure_future(delete_object(self._objects, key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
