"""Supervision of background tasks: a task that fails ends the process."""

import asyncio
import logging
import signal
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from core.errors import MillraceError

_LOG = logging.getLogger(__name__)

OnFailure: TypeAlias = Callable[[MillraceError], None]
"""Is called with a failure after which the process cannot continue."""


class TaskDiedError(MillraceError):
    """A background task failed. What it keeps up to date would become stale unnoticed."""

    code = "task_died"


def supervise(task: asyncio.Task[None], on_failure: OnFailure) -> asyncio.Task[None]:
    """Return `task`; pass what it raises to `on_failure`. Its end and cancellation are ignored."""
    task.add_done_callback(partial(_report_failure, on_failure=on_failure))
    return task


def end_process(_failure: MillraceError) -> None:
    """Stop this process like its supervisor does, with SIGTERM."""
    signal.raise_signal(signal.SIGTERM)


def _report_failure(task: asyncio.Task[None], on_failure: OnFailure) -> None:
    failure = None if task.cancelled() else task.exception()
    if failure is None:
        return
    name = getattr(task.get_coro(), "__qualname__", task.get_name())
    _LOG.critical("a task died", extra={"task": name}, exc_info=failure)
    if isinstance(failure, MillraceError):
        on_failure(failure)
    else:
        on_failure(TaskDiedError(f"The task {name} died: {type(failure).__name__}.", task=name))
