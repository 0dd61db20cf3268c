"""Goal: the engines that need no model pass the suite that real vLLM passes in tests/e2e."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
from aiohttp import web

from core.clock import SystemClock
from gpu_consumers.engines.engine import Engine
from gpu_consumers.engines.engine_slots import EngineSlots
from gpu_consumers.engines.settings import SimulatedFault
from gpu_consumers.engines.simulated.engine_steps import StepTimes
from gpu_consumers.engines.simulated.fault_injection_engine import FaultInjectionEngine
from gpu_consumers.engines.simulated.simulated_engine import SimulatedEngine
from tests.integration.engines.conformance import (
    MODEL,
    CutsConformance,
    EmbeddingsConformance,
    chat_body,
)
from tests.integration.engines.conformance_online import (
    ClassesConformance,
    InterruptionConformance,
    OnlineChatConformance,
    OnlineEmbeddingsConformance,
    ScoresConformance,
)
from tests.integration.engines.upstream import Upstream, engine_for

HASTY_S = 0.1
LONG_WORD = '"ignore_eos":true'
"""What the bodies have in common that take too long."""


class _Everything(
    OnlineChatConformance,
    CutsConformance,
    OnlineEmbeddingsConformance,
    ScoresConformance,
    ClassesConformance,
):
    """An engine that simulates has no one model."""


def simulated(latency_ms: float = 5, token_ms: float = 0) -> SimulatedEngine:
    return SimulatedEngine(
        MODEL,
        latency_ms=latency_ms,
        token_ms=token_ms,
        slots=EngineSlots(8, 3),
        clock=SystemClock(),
    )


def hanging() -> FaultInjectionEngine:
    """Return what a simulated engine with faults is: one that runs each item by itself."""
    inner = SimulatedEngine(MODEL, latency_ms=0, slots=EngineSlots(8), clock=SystemClock())
    faults = [SimulatedFault(contains=LONG_WORD, fault="hang")]
    return FaultInjectionEngine(
        inner, faults, EngineSlots(8, 3), latency_ms=0, item_timeout_s=HASTY_S
    )


async def hang(_: web.Request, body: bytes) -> None:
    if LONG_WORD.encode() in body:
        await asyncio.sleep(3600)


class TestSimulated(_Everything):
    @pytest.fixture
    def engine(self) -> Engine:
        return simulated()

    @pytest.fixture
    def hasty(self) -> Engine:
        return hanging()


class TestSimulatedWithTokenTime(OnlineChatConformance, CutsConformance):
    @pytest.fixture
    def engine(self) -> Engine:
        return simulated(token_ms=2)

    @pytest.fixture
    def hasty(self) -> Engine:
        return hanging()


class TestSimulatedInSteps(_Everything):
    @pytest.fixture
    def engine(self) -> Engine:
        times = StepTimes(step_s=0.0005, sequence_s=0.00001, prompt_token_s=0.000001)
        slots = EngineSlots(8, 3)
        return SimulatedEngine(
            MODEL, latency_ms=0, slots=slots, clock=SystemClock(), step_times=times
        )

    @pytest.fixture
    def hasty(self) -> Engine:
        return hanging()


class TestSimulatedWithoutLatency(EmbeddingsConformance):
    @pytest.fixture
    def engine(self) -> Engine:
        return simulated(latency_ms=0)


class TestOpenAIHttp(_Everything, InterruptionConformance):
    @pytest.fixture
    async def engine(self) -> AsyncIterator[Engine]:
        upstream = Upstream(MODEL, latency_s=0.005)
        async with engine_for(upstream, concurrency=8, interactive_headroom=3) as engine:
            yield engine

    @pytest.fixture
    async def breaking(self) -> AsyncIterator[tuple[Engine, bytes]]:
        async with engine_for(Upstream(MODEL, respond=break_off)) as engine:
            yield engine, chat_body(stream=True)

    @pytest.fixture
    async def hasty(self) -> AsyncIterator[Engine]:
        async with engine_for(Upstream(MODEL, respond=hang), item_timeout_s=HASTY_S) as engine:
            yield engine


async def break_off(request: web.Request, _: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    chunk = {"choices": [{"index": 0, "delta": {"content": "One"}, "finish_reason": None}]}
    for _number in range(3):
        await response.write(b"data: %b\n\n" % msgspec.json.encode(chunk))
    assert request.transport is not None
    request.transport.close()
    return response
