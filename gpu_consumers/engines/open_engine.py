"""Builds the engine that the settings name; third-party engines are imported by its `start`."""

from collections.abc import Callable

from core.clock import SystemClock
from core.errors import MillraceError
from gpu_consumers.adapters.adapter_slots import StageAdapter
from gpu_consumers.engines.engine import Engine
from gpu_consumers.engines.engine_slots import EngineSlots
from gpu_consumers.engines.openai_http.openai_http_engine import OpenAIHttpEngine
from gpu_consumers.engines.settings import EngineSettings
from gpu_consumers.engines.simulated.engine_steps import StepTimes
from gpu_consumers.engines.simulated.fault_injection_engine import FaultInjectionEngine
from gpu_consumers.engines.simulated.simulated_engine import SimulatedEngine
from gpu_consumers.engines.vllm.engine_arguments import ModelToLoad
from gpu_consumers.engines.vllm.vllm_engine import VllmEngine


def open_engine(
    settings: EngineSettings,
    model: ModelToLoad | None = None,
    *,
    stage_adapter: StageAdapter | None = None,
    on_untrusted: Callable[[MillraceError], None] = lambda _: None,
) -> Engine:
    """Return the engine; its `start` loads or connects.

    For vLLM: `model` is loaded instead of the folder that the settings name, and the other
    arguments are those of `VllmEngine`.
    """
    if settings.kind == "vllm":
        return VllmEngine(settings, model, stage_adapter=stage_adapter, on_untrusted=on_untrusted)
    if settings.kind == "openai_http":
        return OpenAIHttpEngine(settings)
    slots = EngineSlots(settings.items_at_once, settings.headroom)
    latency_ms, faults = settings.simulated_latency_ms, settings.simulated_faults
    simulated = SimulatedEngine(
        settings.model_name,
        latency_ms=0 if faults else latency_ms,
        token_ms=settings.simulated_token_ms,
        load_s=settings.simulated_load_s,
        slots=EngineSlots(settings.items_at_once) if faults else slots,
        clock=SystemClock(),
        step_times=_step_times(settings),
        has_adapters=settings.adapters_max > 0,
    )
    if not faults:
        return simulated
    return FaultInjectionEngine(
        simulated, faults, slots, latency_ms=latency_ms, item_timeout_s=settings.item_timeout_s
    )


def _step_times(settings: EngineSettings) -> StepTimes | None:
    """Return the time model of the simulated engine; None without one."""
    if not settings.simulated_step_ms:
        return None
    return StepTimes(
        settings.simulated_step_ms / 1000,
        settings.simulated_step_sequence_ms / 1000,
        settings.simulated_step_prompt_token_ms / 1000,
    )
