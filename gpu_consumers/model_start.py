"""Starts the engine of a replica with its model: verify and stage, plan, load, warm up.

What cannot serve is counted, published as `refused`, and ends the process after a rest, so that
whatever restarts it does not do so in a hot loop.
"""

import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable

from core.clock import SystemClock
from core.errors import EngineDeadError, MillraceError, SettingsError
from gpu_consumers.engines.engine import Engine
from gpu_consumers.engines.open_engine import open_engine
from gpu_consumers.engines.settings import EngineSettings
from gpu_consumers.engines.vllm.device_memory import read_device_memory
from gpu_consumers.engines.vllm.engine_arguments import ModelToLoad
from gpu_consumers.engines.vllm.memory_check import memory_check
from gpu_consumers.engines.warm_up import WarmUpError, warm_up
from gpu_consumers.flow_control.loading_state import LoadingState
from gpu_consumers.weights.errors import ModelRefusedError, RefusalReason
from gpu_consumers.weights.model_loading import StagedModel
from gpu_consumers.weights.replica_model import adapter_staging, prepare_model, report_refusal
from storage.objects.object_store import ObjectStore
from topics.settings import KafkaSettings


@contextlib.asynccontextmanager
async def prepared_engine(
    settings: EngineSettings,
    kafka: KafkaSettings,
    objects: ObjectStore,
    *,
    loading: LoadingState,
    stop: threading.Event,
    on_untrusted: Callable[[MillraceError], None],
) -> AsyncIterator[Engine]:
    """Stage the model and yield its engine, which is not started; end the engine afterwards.

    The files of the model stay staged during the block. Raises what `prepare_model` raises.
    """
    clock = SystemClock()
    async with contextlib.AsyncExitStack() as stack:
        model = await prepare_model(
            settings,
            kafka,
            objects,
            clock=clock,
            stop=stop,
            check_memory=memory_check(settings, read_device_memory, os.environ),
            on_refused=loading.refuse,
        )
        stage_adapter = None
        if model is not None:
            stack.enter_context(model)
            if settings.adapters_max:
                staging = await stack.enter_async_context(
                    adapter_staging(settings, kafka, objects, model.version, clock=clock, stop=stop)
                )
                stage_adapter = staging.stage
        engine = open_engine(
            settings, model_to_load(model), stage_adapter=stage_adapter, on_untrusted=on_untrusted
        )
        stack.push_async_callback(engine.stop)
        yield engine


def model_to_load(model: StagedModel | None) -> ModelToLoad | None:
    """Return what the engine loads of a staged version, and how it says that it is run."""
    if model is None:
        return None
    manifest = model.manifest
    return ModelToLoad(
        folder=model.folder,
        version=model.version,
        engine_options=manifest.engine_options,
        sampling=manifest.sampling,
        kv_cache_memory_bytes=model.kv_cache_memory_bytes,
    )


async def start_engine(
    engine: Engine, settings: EngineSettings, loading: LoadingState, stop: threading.Event
) -> None:
    """Load the model. Options that vLLM refuses, and a failed start, are reported as a refusal.

    Raises what the engine raises: after options that are refused a restart does not help, after a
    start that fails it may.
    """
    try:
        await engine.start()
    except (SettingsError, EngineDeadError) as failure:
        if settings.kind == "vllm":
            refusal = ModelRefusedError(RefusalReason.OPTIONS, str(failure))
            await report_refusal(refusal, loading.refuse, stop)
        raise


async def warm_up_engine(
    engine: Engine, settings: EngineSettings, loading: LoadingState, stop: threading.Event
) -> None:
    """Warm up an engine that computes here. Raises ModelRefusedError if it cannot serve."""
    if settings.kind != "vllm":
        return
    try:
        await warm_up(engine, settings.model_name, timeout_s=settings.vllm_warm_up_s_max)
    except WarmUpError as failure:
        await engine.stop()
        refusal = ModelRefusedError(RefusalReason.WARM_UP, str(failure), **failure.facts)
        await report_refusal(refusal, loading.refuse, stop)
        raise refusal from None
