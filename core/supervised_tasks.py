"""Tasks that belong to nobody else: the first failure among them ends the process."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from core.errors import MillraceError

T = TypeVar("T")


class TaskCancelledError(MillraceError):
    """A task was cancelled by nobody who may: what it ran has no end on the log."""

    code = "task_cancelled"


class RunningTasks:
    """Starts tasks, remembers them until they end, and tells of the first that failed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Nothing runs."""
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_ending = False
        self.failed: asyncio.Future[None] = loop.create_future()
        """Raises what a task or a step raised, or TaskCancelledError: else an offset would wait for
        ever."""

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work`."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def step_soon(self, step: Callable[[T], object], argument: T) -> None:
        """Take a step on the event loop, from any thread: of itself the loop only logs a failure.

        Raises RuntimeError when the loop is closed.
        """
        self._loop.call_soon_threadsafe(self._step, step, argument)

    async def wait(self, timeout_s: float) -> None:
        """Return when nothing runs any more, or time is up."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)

    def cancel(self) -> None:
        """Leave what runs to its redelivery."""
        self._is_ending = True
        for task in self._tasks:
            task.cancel()

    def _step(self, step: Callable[[T], object], argument: T) -> None:
        try:
            step(argument)
        except Exception as failure:  # noqa: BLE001  told by `failed`
            self._fail(failure)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if failure := self._failure(task):
            self._fail(failure)

    def _fail(self, failure: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_exception(failure)

    def _failure(self, task: asyncio.Task[None]) -> BaseException | None:
        if task.cancelled():
            return None if self._is_ending else TaskCancelledError()
        return task.exception()
