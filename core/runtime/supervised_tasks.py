"""Supervision of asyncio tasks: the failure of a task is reported, never lost with the task."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeAlias, TypeVar

from core.errors import MillraceError

_LOG = logging.getLogger(__name__)
T = TypeVar("T")

OnFailure: TypeAlias = Callable[[MillraceError], None]
"""Receives a failure after which the process must not continue."""


class TaskDiedError(MillraceError):
    """A background task failed, so the state that it maintains would become stale."""

    code = "task_died"


class TaskCancelledError(MillraceError):
    """A task was cancelled outside of a shutdown, so the end of its work was not recorded."""

    code = "task_cancelled"


def supervise(task: asyncio.Task[None], on_failure: OnFailure) -> asyncio.Task[None]:
    """Return `task`; when it fails, log the failure and pass it to `on_failure`.

    A failure that is no MillraceError is passed as TaskDiedError. A task that returns or is
    cancelled is not reported.
    """
    task.add_done_callback(partial(_report_task, on_failure=on_failure))
    return task


def report_failure(failure: BaseException, *, name: str, on_failure: OnFailure) -> None:
    """Log the failure of the task or thread `name` and pass it to `on_failure`."""
    _LOG.critical("a task died", extra={"task": name}, exc_info=failure)
    if isinstance(failure, MillraceError):
        on_failure(failure)
    else:
        on_failure(TaskDiedError(f"The task {name} died: {type(failure).__name__}.", task=name))


def _report_task(task: asyncio.Task[None], on_failure: OnFailure) -> None:
    failure = None if task.cancelled() else task.exception()
    if failure is not None:
        name = getattr(task.get_coro(), "__qualname__", task.get_name())
        report_failure(failure, name=name, on_failure=on_failure)


class SupervisedTasks:
    """Starts tasks, keeps references to them until they end, and reports the first failure.

    Cancelling a task fails it with TaskCancelledError, unless `cancel_all` did it: the offset of
    its work would never be committed.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        """Report the first failure to `on_failure`, if there is one, and through `failed`."""
        self._loop = loop
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_cancelled = False
        self.failed: asyncio.Future[None] = loop.create_future()
        """Raises the first failure of a task or callback, unchanged. It never has a result."""

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` in a task."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def call_from_thread(self, callback: Callable[[T], object], argument: T) -> None:
        """Call `callback` on the event loop; its failure counts as the failure of a task.

        May be called from any thread. Raises RuntimeError when the loop is closed.
        """
        self._loop.call_soon_threadsafe(self._call, callback, argument)

    async def wait_all(self, timeout_s: float) -> None:
        """Wait until the tasks that run now have ended, `timeout_s` at most."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)

    def cancel_all(self) -> None:
        """Cancel every task; from now on a cancelled task is not a failure."""
        self._is_cancelled = True
        for task in self._tasks:
            task.cancel()

    def _call(self, callback: Callable[[T], object], argument: T) -> None:
        try:
            callback(argument)
        except Exception as failure:  # noqa: BLE001  reported by `failed`
            self._fail(failure)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            if failure := task.exception():
                self._fail(failure)
        elif not self._is_cancelled:
            self._fail(TaskCancelledError())

    def _fail(self, failure: BaseException) -> None:
        if self.failed.done():
            return
        self.failed.set_exception(failure)
        if self._on_failure is not None:
            self.failed.exception()  # retrieved: asyncio must not log it as lost
            self._on_failure(failure)
