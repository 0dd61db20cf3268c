"""Goal: an upstream that takes only so much gets that much: what it has begun is never thrown away.

Nothing is charged, nothing runs twice, and no place stands empty for long.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from core.errors import PoolBusyError
from gpu_consumers.engines.engine import EngineAnswer, SlotCounts
from gpu_consumers.engines.openai_http.openai_http_engine import OpenAIHttpEngine
from tests.integration.engines.conformance import CHAT, chat_body, run
from tests.integration.engines.upstream import Upstream, engine_for
from tests.support.until import until_true

LATENCY_S = 0.02


class Narrow:
    """Runs so many items at once and refuses the others with `status`."""

    def __init__(self, places: int, status: int = 429, *, retry_after: str = "") -> None:
        self.places, self.status = places, status
        self.headers = {"Retry-After": retry_after} if retry_after else {}
        self.running = self.refused = 0
        self.refusals = asyncio.Semaphore(0)
        self.begun: Counter[bytes] = Counter()
        self.ended: Counter[bytes] = Counter()

    async def __call__(self, _: web.Request, body: bytes) -> web.StreamResponse | None:
        if self.running >= self.places:
            self.refused += 1
            self.refusals.release()
            return web.Response(status=self.status, headers=self.headers)
        self.running += 1
        self.begun[body] += 1
        try:
            await asyncio.sleep(LATENCY_S)
            self.ended[body] += 1
        finally:
            self.running -= 1
        return None


@asynccontextmanager
async def refused_engine(respond: object, **fields: object) -> AsyncIterator[OpenAIHttpEngine]:
    async with engine_for(Upstream("m", respond=respond), **fields) as engine:  # type: ignore[arg-type]
        yield engine
        assert engine.slots == SlotCounts(0, 0, 0, refused=engine.slots.refused)


def bodies(count: int) -> list[bytes]:
    return [chat_body(f"item {number}") for number in range(count)]


@pytest.mark.parametrize("status", [402, 429, 503, 529])
async def test_every_item_runs_once_on_a_smaller_upstream(status: int) -> None:
    upstream = Narrow(8, status)
    async with refused_engine(upstream, concurrency=32) as engine:
        answers = await asyncio.gather(*(run(engine, CHAT, part) for part in [bodies(150)] * 2))
    assert {answer.status_code for part in answers for answer in part} == {200}
    assert set(upstream.begun.values()) == {2}  # once in each of the two calls
    assert upstream.begun == upstream.ended
    # 24 at first, and one or two in each growth round of 8.
    assert 24 <= upstream.refused < 150


async def test_one_item_that_is_always_refused_affects_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gpu_consumers.engines.openai_http.upstream_failures.REFUSED_S_MAX", 0.3)

    async def respond(_: web.Request, body: bytes) -> web.StreamResponse | None:
        await asyncio.sleep(LATENCY_S)
        return web.Response(status=503) if b"bad" in body else None

    answered: list[int] = []
    items = [chat_body("bad"), *bodies(150)]
    async with refused_engine(respond, concurrency=4) as engine:
        with pytest.raises(PoolBusyError):  # and not that the pool is away
            await engine.execute(CHAT, items, lambda index, _: answered.append(index))
    assert sorted(answered) == [*range(1, 151)]


@pytest.mark.parametrize("streams", [True, False])
async def test_refused_online_call_is_retried(streams: bool) -> None:
    upstream = Narrow(1)
    pieces: list[bytes] = []
    async with refused_engine(upstream, concurrency=4) as engine:
        bulk = asyncio.create_task(run(engine, CHAT, bodies(30)))
        await until_true(lambda: upstream.running)
        emit = pieces.append if streams else None
        answer = await engine.serve(CHAT, chat_body("online", stream=streams), emit)
        assert answer.status_code == 200
        assert bool(pieces) == streams
        assert not any(a.status_code != 200 for a in await bulk)
    assert set(upstream.begun.values()) == {1}


async def test_call_cancelled_in_its_pause_leaks_nothing() -> None:
    upstream = Narrow(1, retry_after="60")
    async with refused_engine(upstream, concurrency=4) as engine:
        (first,) = await run(engine, CHAT, [chat_body()])
        assert isinstance(first, EngineAnswer)
        call = asyncio.create_task(run(engine, CHAT, bodies(4)))
        for _ in range(3):
            await asyncio.wait_for(upstream.refusals.acquire(), 20)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        answers = await asyncio.wait_for(run(engine, CHAT, [chat_body()]), 20)
        assert [answer.status_code for answer in answers] == [200]
