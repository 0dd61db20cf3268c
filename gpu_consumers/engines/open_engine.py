"""The engine that the settings name; only this engine's packages get imported."""

from core.clock import SystemClock
from gpu_consumers.engines.engine import Engine
from gpu_consumers.engines.openai_http import OpenAIHttpEngine
from gpu_consumers.engines.settings import EngineSettings
from gpu_consumers.engines.simulated import SimulatedEngine
from gpu_consumers.engines.slots import Slots
from gpu_consumers.engines.vllm import VllmEngine


def open_engine(settings: EngineSettings) -> Engine:
    """Build the engine; nothing is loaded or connected before its `start`."""
    if settings.kind == "vllm":
        return VllmEngine(settings)
    if settings.kind == "openai_http":
        return OpenAIHttpEngine(settings)
    return SimulatedEngine(
        settings.model_name,
        latency_ms=settings.simulated_latency_ms,
        token_ms=settings.simulated_token_ms,
        slots=Slots(settings.items_at_once, settings.headroom),
        clock=SystemClock(),
    )
