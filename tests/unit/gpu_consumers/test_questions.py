"""Goal: a call that may have run before runs only when its caller says so, in time."""

import asyncio
from uuid import UUID

import pytest

from gpu_consumers.online.completed_calls import EndedCalls
from gpu_consumers.quarantine import rerun_permission as questions_module
from gpu_consumers.quarantine.rerun_permission import ASKS_MAX, Questions
from topics.records.records import CallRef

CALLER = CallRef("c1", 3)
ID, OTHER_ID = UUID(int=1), UUID(int=2)


class Log:
    """Takes questions; acknowledges those that it is told to."""

    def __init__(self, *, acknowledges: bool = True) -> None:
        self.acknowledges = acknowledges
        self.asked: list[UUID] = []
        self.unacknowledged: list[asyncio.Future[None]] = []

    def ask(self, _: CallRef, request_id: UUID) -> asyncio.Future[None]:
        self.asked.append(request_id)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.unacknowledged.append(done)
        if self.acknowledges:
            self.acknowledge()
        return done

    def acknowledge(self) -> None:
        for done in self.unacknowledged:
            done.set_result(None)
        self.unacknowledged.clear()


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_permitted_call_may_run() -> None:
    log = Log()
    questions = Questions(log.ask)
    waiting = asyncio.create_task(questions.may_run(CALLER, ID))
    await turns()
    questions.permitted([OTHER_ID, ID, ID])

    assert await waiting
    assert log.asked == [ID]


async def test_a_call_whose_caller_does_not_answer_is_asked_about_again_and_may_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(questions_module, "ANSWER_S_MAX", 0.001)
    log = Log()
    questions = Questions(log.ask)
    assert not await questions.may_run(CALLER, ID)
    assert log.asked == [ID] * ASKS_MAX
    questions.permitted([ID])


async def test_a_question_that_lies_before_the_log_costs_no_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(questions_module, "ANSWER_S_MAX", 0.0)
    log = Log(acknowledges=False)
    questions = Questions(log.ask)
    waiting = asyncio.create_task(questions.may_run(CALLER, ID))
    await asyncio.sleep(0.02)
    assert (waiting.done(), log.asked) == (False, [ID])
    log.acknowledge()
    await turns()
    questions.permitted([ID])
    assert await waiting


async def test_an_answer_that_comes_before_the_acknowledgement_counts() -> None:
    questions = Questions(Log(acknowledges=False).ask)
    waiting = asyncio.create_task(questions.may_run(CALLER, ID))
    await turns()
    questions.permitted([ID])
    assert await waiting


def test_ended_calls_are_remembered_up_to_a_limit() -> None:
    ended = EndedCalls(count_max=2)
    for number in (1, 2, 3):
        ended.add(UUID(int=number))
    assert [UUID(int=number) in ended for number in (1, 2, 3)] == [False, True, True]
