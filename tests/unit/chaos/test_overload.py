"""Goal: the load arrives at its rate whatever the server does, and each broken promise shows."""

import asyncio
from random import Random

import pytest

from chaos.clients.open_loop import offer_calls
from chaos.drills.overload import Stage, _answers, _goodput, _waits
from chaos.measures import Measure
from cli.load.load_client import LoadTarget, TimedCall
from tests.support.scripted_http import response, scripted_http


def call(status: int, seconds: float = 1.0, *, retry_after: str = "") -> TimedCall:
    error = "" if status == 200 else f"{status} refused"
    return TimedCall(0.0, ended_s=seconds, status=status, error=error, retry_after=retry_after)


def stage(factor: float, *calls: TimedCall) -> Stage:
    return Stage(factor, calls, seconds=10.0)


REFUSED = call(503, 0.01, retry_after="2")


async def test_calls_arrive_while_earlier_ones_have_no_answer() -> None:
    sent = 0

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        sent += 1
        await reader.read()  # until the client gives up
        writer.close()

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        target = LoadTarget(f"http://127.0.0.1:{port}/v1", "sk-x", b"{}")
        calls = await offer_calls(
            target, calls_per_s=200, seconds=0.2, timeout_s=0.5, random=Random(1)
        )
    assert len(calls) >= 20
    assert sent > 1
    assert {found.error for found in calls} == {"timeout"}


async def test_a_connection_serves_one_call_after_the_other_with_the_headers() -> None:
    refusal = response(b"503 Busy\r\nRetry-After: 7", b"{}")
    async with scripted_http(refusal) as url:
        target = LoadTarget(f"{url}/v1", "sk-x", b"{}", {"x-limit": "5"})
        calls = await offer_calls(
            target, calls_per_s=50, seconds=0.2, timeout_s=20, random=Random(1)
        )
    assert b"\r\nx-limit: 5\r\n" in target.request
    assert {(found.status, found.retry_after) for found in calls} == {(503, "7")}


def test_a_pool_that_serves_less_under_load_breaks_the_promise() -> None:
    first = stage(1, *[call(200)] * 10)
    assert _goodput([first, stage(10, *[call(200)] * 9)]).passed
    assert _goodput([first, stage(10, *[call(200)] * 8)]).is_violation


@pytest.mark.parametrize(
    ("wrong", "number"),
    [
        (call(500), 0),
        (call(0), 0),
        (TimedCall(0.0, error="timeout"), 0),
        (call(503), 1),
        (call(429, retry_after="0"), 1),
        (call(429, retry_after="61"), 1),
        (call(429, retry_after="soon"), 1),
    ],
)
def test_a_call_without_a_proper_answer_breaks_the_promise(wrong: TimedCall, number: int) -> None:
    proper = (call(200), call(504), REFUSED)
    assert all(measure.passed for measure in _answers([stage(1, *proper)]))
    measures = list(_answers([stage(1, *proper), stage(10, *proper, wrong)]))
    assert [measure.is_violation for measure in measures] == [number == 0, number == 1]


def test_slow_refusals_and_slow_answers_miss_their_goals() -> None:
    def values(last: Stage) -> list[Measure]:
        return list(_waits(stage(0.25, call(200, 1.0)), last))

    assert all(measure.passed for measure in values(stage(10, call(200, 1.1), REFUSED)))
    slow = values(stage(10, call(200, 1.5), call(503, 0.2, retry_after="1"), call(504)))
    assert [measure.passed for measure in slow] == [False] * 3
    assert not values(stage(10, call(200, 1.1)))[0].passed  # nothing was refused
