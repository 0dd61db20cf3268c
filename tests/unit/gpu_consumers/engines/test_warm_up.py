"""Goal: an engine is warm for all that it serves before its replica joins, or it serves nothing."""

import asyncio
from collections.abc import Sequence
from typing import cast

import msgspec
import pytest

from core.clock import SystemClock
from gpu_consumers.engines.engine import Engine, EngineAnswer, OnAnswer
from gpu_consumers.engines.engine_slots import EngineSlots
from gpu_consumers.engines.simulated.simulated_engine import SimulatedEngine
from gpu_consumers.engines.warm_up import WarmUpError, warm_up


class NarrowEngine:
    """Serves some endpoints, and prompts up to a size."""

    def __init__(self, *endpoints: str, bytes_max: int = 10_000, status: int = 200) -> None:
        self._endpoints, self._bytes_max, self._status = endpoints, bytes_max, status
        self.answered: list[tuple[str, list[int]]] = []  # endpoint and sizes of bodies
        self.silent_count = 0

    async def execute(self, endpoint: str, bodies: Sequence[bytes], finished: OnAnswer) -> None:
        sizes = [len(body) for body in bodies]
        if endpoint not in self._endpoints:
            status = 404
        else:
            status = 400 if max(sizes) > self._bytes_max else self._status
        for index, body in enumerate(bodies[self.silent_count :], self.silent_count):
            assert msgspec.json.decode(body)["model"] == "m"
            finished(index, EngineAnswer(status, b"{}"))
        if status == 200:
            self.answered.append((endpoint, sizes))


async def run(engine: object, timeout_s: float = 60.0) -> None:
    await warm_up(cast(Engine, engine), "m", timeout_s=timeout_s)


async def test_each_endpoint_gets_a_small_prompt_a_large_one_and_several() -> None:
    engine = NarrowEngine("/v1/completions", "/v1/chat/completions")
    await run(engine)
    assert [endpoint for endpoint, _ in engine.answered] == [
        *["/v1/completions"] * 3,
        *["/v1/chat/completions"] * 3,
    ]
    for _, sizes in engine.answered[1::3]:
        assert sizes[0] > 5_000
    assert len(engine.answered[2][1]) == 8


async def test_a_small_context_gets_a_shorter_prompt() -> None:
    engine = NarrowEngine("/v1/embeddings", bytes_max=1_000)
    await run(engine)
    assert [max(sizes) > 500 for _, sizes in engine.answered] == [False, True, False]


async def test_the_simulated_engine_is_warm() -> None:
    slots = EngineSlots(64)
    await run(SimulatedEngine("m", latency_ms=0, slots=slots, clock=SystemClock()))


async def test_a_failure_is_raised() -> None:
    with pytest.raises(WarmUpError, match="failed"):
        await run(NarrowEngine("/v1/completions", status=500))


async def test_a_missing_answer_is_a_failure() -> None:
    engine = NarrowEngine("/v1/completions")
    engine.silent_count = 1
    with pytest.raises(WarmUpError, match="failed"):
        await run(engine)


async def test_an_engine_without_endpoint_is_not_warm() -> None:
    with pytest.raises(WarmUpError, match="no endpoint"):
        await run(NarrowEngine())


async def test_the_time_is_limited() -> None:
    class Endless:
        async def execute(self, *_: object) -> None:
            await asyncio.Event().wait()

    with pytest.raises(WarmUpError, match="not warm after 0 s"):
        await run(Endless(), timeout_s=0.0)
