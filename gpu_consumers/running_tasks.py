"""Tasks that belong to nobody else: the first failure among them ends the process."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class RunningTasks:
    """Starts tasks, remembers them until they end, and tells of the first that failed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Nothing runs."""
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()
        self.failed: asyncio.Future[None] = loop.create_future()
        """Raises what a task raised."""

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work`."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def wait(self, timeout_s: float) -> None:
        """Return when nothing runs any more, or time is up."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)

    def cancel(self) -> None:
        """Leave what runs to its redelivery."""
        for task in self._tasks:
            task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) and not self.failed.done():
            self.failed.set_exception(failure)
