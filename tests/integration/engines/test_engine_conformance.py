"""Goal: the engines that need no model pass the suite that real vLLM passes in tests/e2e."""

from collections.abc import AsyncIterator

import pytest

from core.clock import SystemClock
from gpu_consumers.engines.engine import Engine
from gpu_consumers.engines.openai_http import OpenAIHttpEngine
from gpu_consumers.engines.simulated import SimulatedEngine
from gpu_consumers.engines.slots import Slots
from tests.integration.engines.conformance import (
    MODEL,
    ChatConformance,
    EmbeddingsConformance,
)
from tests.integration.engines.upstream import Upstream, http_settings, serve


class TestSimulated(ChatConformance, EmbeddingsConformance):
    @pytest.fixture
    def engine(self) -> Engine:
        return SimulatedEngine(MODEL, latency_ms=5, slots=Slots(8, 3), clock=SystemClock())


class TestSimulatedWithoutLatency(EmbeddingsConformance):
    @pytest.fixture
    def engine(self) -> Engine:
        return SimulatedEngine(MODEL, latency_ms=0, slots=Slots(8, 3), clock=SystemClock())


class TestOpenAIHttp(ChatConformance, EmbeddingsConformance):
    @pytest.fixture
    async def engine(self) -> AsyncIterator[Engine]:
        async with serve(Upstream(MODEL, latency_s=0.005)) as url:
            engine = OpenAIHttpEngine(http_settings(url, concurrency=8))
            await engine.start()
            yield engine
            await engine.stop()
