"""Goal: a call that may have run before runs only when its caller says so, in time."""

import asyncio
from uuid import UUID

from gpu_consumers.ended_calls import EndedCalls
from gpu_consumers.questions import Questions
from topics.records import CallRef

CALLER = CallRef("c1", 3)
ID, OTHER_ID = UUID(int=1), UUID(int=2)


async def test_a_permitted_call_may_run() -> None:
    asked: list[UUID] = []
    questions = Questions(lambda _, request_id: asked.append(request_id))
    waiting = asyncio.create_task(questions.may_run(CALLER, ID))
    await asyncio.sleep(0)
    questions.permitted([OTHER_ID, ID, ID])

    assert await waiting
    assert asked == [ID]


async def test_a_call_whose_caller_is_silent_may_not() -> None:
    questions = Questions(lambda *_: None, answer_s_max=0.01)
    assert not await questions.may_run(CALLER, ID)
    questions.permitted([ID])


def test_ended_calls_are_remembered_up_to_a_limit() -> None:
    ended = EndedCalls(count_max=2)
    for number in (1, 2, 3):
        ended.add(UUID(int=number))
    assert [UUID(int=number) in ended for number in (1, 2, 3)] == [False, True, True]
