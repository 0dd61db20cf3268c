"""Work with the object store in threads, which costs nothing any more once its caller gave up."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, ParamSpec, TypeVar

from core.errors import MillraceError
from storage.objects.object_store import ObjectStore

P = ParamSpec("P")
T = TypeVar("T")

DELETIONS_MAX: Final = 1000
"""Removals on their way in this process, for all who begin them in one place."""

_DROP_S_MAX: Final = 2.0  # what a store that hangs keeps waiting is swept instead


async def run_in_store_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what `call` returns, from one of the threads that read and write objects.

    While the store hangs, work waits for a thread, with the megabytes that it shall write. Whoever
    is cancelled takes them along; only what has begun keeps them until it ends. Raises what `call`
    raises.
    """
    waiting = deque([partial(call, *args, **kwargs)])  # its `pop` is atomic

    def run() -> T:
        return waiting.pop()()  # of what was given up: an error that nobody hears

    try:
        return await asyncio.to_thread(run)
    finally:
        waiting.clear()


async def delete_object(objects: ObjectStore, key: str) -> None:
    """Remove what nobody needs any more, if the store does that soon; the rest is swept later."""
    with suppress(MillraceError, TimeoutError):
        async with asyncio.timeout(_DROP_S_MAX):
            await run_in_store_thread(objects.delete, key)


class ObjectDeletions:
    """Removes objects beside the answers: nobody waits for it. All on the event loop."""

    def __init__(self, objects: ObjectStore) -> None:
        """Nothing is on its way."""
        self._objects = objects
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, key: str) -> None:
        """Remove an object soon; with too many on their way it is left to the sweep."""
        if len(self._tasks) >= DELETIONS_MAX:
            return
        task = asyncio.ensure_future(delete_object(self._objects, key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
