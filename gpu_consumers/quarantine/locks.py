"""Locks that decide which batches of a replica may run at once. All are for one event loop."""

import asyncio
from collections import deque


class SharedExclusiveLock:
    """Held by many at once, or by one alone.

    Where some wait for either mode, the modes alternate: a release of the exclusive mode admits
    all who wait for the shared mode by then, and after them the next exclusive holder.
    """

    def __init__(self) -> None:
        self._shared_count = 0
        self._no_shared = asyncio.Event()
        self._no_shared.set()
        self._exclusive_count = 0  # holds the exclusive mode, or waits for it
        self._exclusive = asyncio.Lock()
        self._shared_waiters: deque[asyncio.Future[None]] = deque()

    async def acquire_shared(self) -> None:
        """Wait until nobody holds or awaits the exclusive mode; needs one `release_shared`."""
        if not self._exclusive_count:
            self._add_shared()
            return
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._shared_waiters.append(admitted)
        try:
            await admitted
        except asyncio.CancelledError:
            if not admitted.cancelled():
                self.release_shared()  # admitted before the cancellation arrived
            raise

    def release_shared(self) -> None:
        """End one shared hold."""
        self._shared_count -= 1
        if not self._shared_count:
            self._no_shared.set()

    async def acquire_exclusive(self) -> None:
        """Wait until there is no other holder; needs one `release_exclusive`."""
        self._exclusive_count += 1
        try:
            await self._exclusive.acquire()
            try:
                await self._no_shared.wait()
            except asyncio.CancelledError:
                self._exclusive.release()
                raise
        except asyncio.CancelledError:
            self._exclusive_count -= 1
            if not self._exclusive_count:
                self._admit_shared()
            raise

    def release_exclusive(self) -> None:
        """End the exclusive hold: admit the shared waiters, then the next exclusive one."""
        self._exclusive_count -= 1
        self._admit_shared()
        self._exclusive.release()

    def _admit_shared(self) -> None:
        while self._shared_waiters:
            admitted = self._shared_waiters.popleft()
            if not admitted.done():  # nor cancelled
                self._add_shared()
                admitted.set_result(None)

    def _add_shared(self) -> None:
        self._shared_count += 1
        self._no_shared.clear()


class ItemSemaphore:
    """Limits the items that run at once; admits in order of arrival.

    An acquisition larger than the limit waits for all of it.
    """

    def __init__(self, item_count_max: int) -> None:
        self._limit = self._free = item_count_max
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def acquire(self, item_count: int) -> None:
        """Wait for `item_count` free slots; needs one `release` with the same count."""
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((item_count, admitted))
        self._admit()
        try:
            await admitted
        except asyncio.CancelledError:
            if not admitted.cancelled():
                self.release(item_count)  # admitted before the cancellation arrived
            self._admit()  # the next waiter may need fewer slots
            raise

    def release(self, item_count: int) -> None:
        """Free the slots of one acquisition."""
        self._free += min(item_count, self._limit)
        self._admit()

    def _admit(self) -> None:
        while self._waiters:
            item_count, admitted = self._waiters[0]
            needed = min(item_count, self._limit)
            if not admitted.done() and needed > self._free:
                return
            self._waiters.popleft()
            if not admitted.done():
                self._free -= needed
                admitted.set_result(None)


class CrashCountOrder:
    """Orders quarantined batches by the crashes that are attributed to their next unit.

    A crash makes everything left wait for the next owner. With the fewest crashes first, innocent
    items wait for the fewest crashes, also when the poison item is in another batch.
    """

    def __init__(self) -> None:
        self._crash_counts: dict[object, int] = {}
        self._changed = asyncio.Event()

    def set_crash_count(self, batch: object, crashes: int) -> None:
        """Add `batch` or change the count of its next unit."""
        self._crash_counts[batch] = crashes
        self._wake_waiters()

    def remove(self, batch: object) -> None:
        """Remove `batch`: no unit of it is left."""
        self._crash_counts.pop(batch, None)
        self._wake_waiters()

    async def wait_until_lowest(self, batch: object) -> None:
        """Wait until no other batch has a lower count than `batch`."""
        while min(self._crash_counts.values()) < self._crash_counts[batch]:
            await self._changed.wait()

    def _wake_waiters(self) -> None:
        self._changed.set()
        self._changed.clear()
