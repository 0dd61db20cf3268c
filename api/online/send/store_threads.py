"""Calls of the object store in threads. A cancelled call frees its memory at once."""

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
"""Deletions in progress, for each ObjectDeletions."""

_DELETE_S_MAX: Final = 2.0  # a deletion that takes longer is left to the orphan sweep


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


async def delete_object(objects: ObjectStore, key: str) -> None:
    """Delete an object, within a time limit. The orphan sweep deletes it otherwise."""
    with suppress(MillraceError, TimeoutError):
        async with asyncio.timeout(_DELETE_S_MAX):
            await run_in_store_thread(objects.delete, key)


class ObjectDeletions:
    """Deletes objects in the background. All methods run on the event loop."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, key: str) -> None:
        """Start to delete an object. Beyond DELETIONS_MAX it is left to the orphan sweep."""
        if len(self._tasks) >= DELETIONS_MAX:
            return
        task = asyncio.ensure_future(delete_object(self._objects, key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
