"""Refuses a model that does not fit the device, with its numbers, before vLLM is started.

On a GPU the memory plan decides, and gives vLLM the size of its KV cache. On a CPU the operator
sets that size; the weights and it must fit the memory that is available.
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from core.errors import Disposition, MillraceError
from gpu_consumers.engines.settings import EngineSettings
from gpu_consumers.engines.vllm.device_memory import DeviceMemory
from gpu_consumers.engines.vllm.engine_arguments import resolved_options
from gpu_consumers.weights.errors import ModelRefusedError, RefusalReason
from gpu_consumers.weights.model_loading import MemoryCheck
from registry.manifests.manifest import Manifest
from registry.memory_plan.memory_options import FITTING_LEN
from registry.memory_plan.memory_plan import (
    MEMORY_SHARE,
    MemoryPlan,
    ModelDoesNotFitError,
    require_fit,
)
from registry.memory_plan.model_folder_plan import plan_of_folder

GIB: Final = 2**30
HOST_CACHE_VARIABLE: Final = "VLLM_CPU_KVCACHE_SPACE"
"""vLLM's variable, in GiB; an operator's own value wins over the setting."""

_LOG = logging.getLogger(__name__)


def memory_check(
    settings: EngineSettings,
    read_device: Callable[[], DeviceMemory | None],
    environ: Mapping[str, str],
) -> MemoryCheck:
    """Return the memory check of a replica. A model or device that is not known is not refused."""

    def check(manifest: Manifest, folder: Path) -> int | None:
        device = read_device()
        if device is None:
            _LOG.warning("memory_plan_skipped", extra={"detail": "The memory is not known."})
            return None
        options = resolved_options(settings, manifest.engine_options, on_cpu=not device.is_gpu)
        try:
            plan = _plan(settings, options, folder, device)
        except MillraceError as failure:
            if failure.disposition is not Disposition.REJECT:
                raise
            # vLLM may load what the plan cannot read.
            _LOG.warning("memory_plan_skipped", extra={"detail": str(failure)})
            return None
        try:
            if device.is_gpu:
                require_fit(plan)
                return plan.kv_cache_memory_bytes or None
            is_fitted = options.get("max_model_len") == FITTING_LEN
            require_host_fit(plan, _host_cache_bytes(settings, environ), is_len_fitted=is_fitted)
        except ModelDoesNotFitError as failure:
            raise ModelRefusedError(
                RefusalReason.MEMORY, str(failure), **failure.facts
            ) from failure
        return None

    return check


def _plan(
    settings: EngineSettings, options: Mapping[str, Any], folder: Path, device: DeviceMemory
) -> MemoryPlan:
    adapters = {
        "adapters_max": settings.adapters_max,
        "adapter_rank_max": settings.adapter_rank_max,
    }
    share = (settings.vllm_gpu_memory_utilization or MEMORY_SHARE) if device.is_gpu else 1.0
    return plan_of_folder(folder, {**options, **adapters}, device.total_bytes, share)


def require_host_fit(plan: MemoryPlan, cache_bytes: int, *, is_len_fitted: bool) -> None:
    """Raise ModelDoesNotFitError, with the numbers, for what cannot run in the host's memory.

    `cache_bytes` is the KV cache of each process. Activations are not counted: the plan knows them
    for GPUs only. `is_len_fitted`: vLLM shortens the longest sequence to the cache.
    """
    needed = plan.devices * (plan.weights_bytes + plan.reserve.adapter_bytes + cache_bytes)
    if needed > plan.device_bytes:
        raise ModelDoesNotFitError(
            f"The model needs {_gib(plan.weights_bytes)} of weights +"
            f" {_gib(plan.reserve.adapter_bytes)} of adapters + {_gib(cache_bytes)} of KV cache"
            f" in {plan.devices} processes = {_gib(needed)}; {_gib(plan.device_bytes)} of memory"
            " are available.",
            required_bytes=needed,
            usable_bytes=plan.device_bytes,
        )
    sequence_bytes = plan.max_model_len * plan.kv_token_bytes
    if plan.is_kv_exact and not is_len_fitted and sequence_bytes > cache_bytes:
        raise ModelDoesNotFitError(
            f"One sequence of {plan.max_model_len} tokens needs {_gib(sequence_bytes)} of KV cache;"
            f" it has {_gib(cache_bytes)}. Raise vllm_kv_cache_gib or lower max_model_len.",
            required_bytes=sequence_bytes,
            usable_bytes=cache_bytes,
        )


def _host_cache_bytes(settings: EngineSettings, environ: Mapping[str, str]) -> int:
    given = environ.get(HOST_CACHE_VARIABLE, "")
    return (int(given) if given.isdecimal() else settings.vllm_kv_cache_gib) * GIB


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"
