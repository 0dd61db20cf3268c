"""Goal: no failure of a task or callback is lost; an end or a cancellation is no failure."""

import asyncio
import logging

import pytest

from core.errors import MillraceError, SchemaTooNewError
from core.supervised_tasks import SupervisedTasks, TaskCancelledError, TaskDiedError, supervise


async def fail(failure: Exception) -> None:
    raise failure


async def reported(task: asyncio.Task[None]) -> list[MillraceError]:
    failures: list[MillraceError] = []
    supervise(task, failures.append)
    await asyncio.wait([task], timeout=5)
    await asyncio.sleep(0)
    return failures


async def test_supervise_names_the_task_of_an_unknown_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (failure,) = await reported(asyncio.create_task(fail(RuntimeError("secret"))))

    assert isinstance(failure, TaskDiedError)
    assert str(failure) == "The task fail died: RuntimeError."
    assert [record.levelno for record in caplog.records] == [logging.CRITICAL]


async def test_supervise_passes_a_known_failure_unchanged() -> None:
    failure = SchemaTooNewError()

    assert await reported(asyncio.create_task(fail(failure))) == [failure]


async def test_supervise_does_not_report_an_end_or_a_cancellation() -> None:
    cancelled = asyncio.create_task(asyncio.sleep(30))
    cancelled.cancel()

    assert await reported(cancelled) == []
    assert await reported(asyncio.create_task(asyncio.sleep(0))) == []


async def test_supervised_tasks_report_their_first_failure_only() -> None:
    failures: list[BaseException] = []
    tasks = SupervisedTasks(asyncio.get_running_loop(), failures.append)
    tasks.start(fail(ValueError("first")))
    tasks.start(fail(ValueError("second")))
    await tasks.wait_all(5)

    assert [str(failure) for failure in failures] == ["first"]


async def test_supervised_tasks_report_the_failure_of_a_callback() -> None:
    tasks = SupervisedTasks(asyncio.get_running_loop())
    called_with: list[int] = []
    tasks.call_from_thread(called_with.append, 1)
    tasks.call_from_thread(int, "no number")
    with pytest.raises(ValueError, match="no number"):
        await asyncio.wait_for(tasks.failed, 5)

    assert called_with == [1]


async def test_supervised_tasks_report_a_cancellation_unless_they_are_shut_down() -> None:
    tasks = SupervisedTasks(asyncio.get_running_loop())
    running = tasks.start(asyncio.sleep(30))
    tasks.cancel_all()
    await asyncio.wait([running], timeout=5)
    assert not tasks.failed.done()

    others = SupervisedTasks(asyncio.get_running_loop())
    others.start(asyncio.sleep(30)).cancel()
    with pytest.raises(TaskCancelledError):
        await asyncio.wait_for(others.failed, 5)
