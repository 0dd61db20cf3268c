"""Tasks beside the requests of a process: one that dies ends the process, and never unseen."""

import asyncio
import logging
import signal
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from core.errors import MillraceError

_LOG = logging.getLogger(__name__)

OnFailure: TypeAlias = Callable[[MillraceError], None]
"""Takes what a process cannot go on with."""


class TaskDiedError(MillraceError):
    """A task in the background died; what it keeps up to date would grow stale unseen."""

    code = "task_died"


def supervise(task: asyncio.Task[None], on_failure: OnFailure) -> asyncio.Task[None]:
    """Return `task`; whatever it raises reaches `on_failure`. Its end and its cancelling do not."""
    task.add_done_callback(partial(_tell, on_failure=on_failure))
    return task


def end_process(_failure: MillraceError) -> None:
    """Stop this process as its supervisor would."""
    signal.raise_signal(signal.SIGTERM)


def _tell(task: asyncio.Task[None], on_failure: OnFailure) -> None:
    failure = None if task.cancelled() else task.exception()
    if failure is None:
        return
    name = getattr(task.get_coro(), "__qualname__", task.get_name())
    _LOG.critical("a task died", extra={"task": name}, exc_info=failure)
    if isinstance(failure, MillraceError):
        on_failure(failure)
    else:
        on_failure(TaskDiedError(f"The task {name} died: {type(failure).__name__}.", task=name))
