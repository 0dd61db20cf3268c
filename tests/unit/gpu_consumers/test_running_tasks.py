"""Goal: no failure on the event loop passes unseen, whoever asked for the step."""

import asyncio

import pytest

from core.errors import SchemaTooNewError
from core.supervised_tasks import RunningTasks
from tests.unit.gpu_consumers.attempts import Attempts
from tests.unit.gpu_consumers.bulk_bench import Life, Log, TouchyEngine, batch_of, delivery


async def test_a_step_that_fails_is_told_as_a_task_is() -> None:
    tasks = RunningTasks(asyncio.get_running_loop())
    seen: list[int] = []
    tasks.step_soon(seen.append, 1)
    tasks.step_soon(int, "no number")
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert seen == [1]
    with pytest.raises(ValueError, match="no number"):
        tasks.failed.result()


async def test_a_batch_that_cannot_begin_ends_the_process() -> None:
    life = Life(Log(), Attempts(), TouchyEngine())
    life.closed.ended = SchemaTooNewError()
    life.tasks.step_soon(life.lane.begin, delivery(batch_of(b"{}")))

    with pytest.raises(SchemaTooNewError):
        await asyncio.wait_for(life.tasks.failed, 5)
    assert life.consumer.offsets == []
