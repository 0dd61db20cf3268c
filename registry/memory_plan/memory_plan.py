"""The memory plan: what a model needs on each device, and what is left for the KV cache.

The plan is a function of the headers of the weights, the configuration, the options and the size
of the device. It is computed on a machine without GPUs, before a version is published, and at the
replica before the engine starts, so that a model that cannot fit is refused with its numbers
instead of failing after minutes of loading.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from core.errors import Disposition, MillraceError
from registry.memory_plan.kv_cache import plan_kv_cache
from registry.memory_plan.memory_options import FITTING_LEN, MemoryOptions
from registry.memory_plan.model_shape import ModelShape
from registry.memory_plan.reserve import GIB, Reserve, plan_reserve
from registry.memory_plan.safetensors_header import Tensor
from registry.memory_plan.weights import ONLINE_QUANTIZATIONS, stage_weights, stored_bytes

MEMORY_SHARE: Final = 0.9
"""The share of a device's memory that a replica may use, unless it is set."""


class ModelDoesNotFitError(MillraceError):
    """The model does not fit the memory of the device."""

    code = "model_does_not_fit"
    disposition = Disposition.REJECT


class MemoryPlan(msgspec.Struct, frozen=True):
    """Bytes of one device, of the stage of a pipeline that has least to spare."""

    model_type: str
    devices: int  # of one replica: tensor × pipeline × data parallelism
    device_bytes: int
    memory_share: float
    stored_bytes: int  # of the files
    weights_bytes: int
    reserve: Reserve
    kv_token_bytes: int  # 0: no KV cache
    kv_block_tokens: int
    kv_cache_memory_bytes: int  # whole blocks that fit; vLLM's option of this name; 0: do not set
    max_model_len: int  # tokens of the longest sequence
    kv_sequence_bytes: int  # of the longest sequence
    is_kv_exact: bool = True  # whether the two sizes are what vLLM needs, and no upper bound
    notes: tuple[str, ...] = ()  # what is an upper bound, or not known

    @property
    def usable_bytes(self) -> int:
        """The bytes that the replica may use of the device."""
        return int(self.device_bytes * self.memory_share)

    @property
    def required_bytes(self) -> int:
        """The least that the replica needs: with a KV cache of one longest sequence.

        Without the KV cache if only an upper bound of it is known, so that no model is refused
        that fits.
        """
        cache_bytes = self.kv_sequence_bytes if self.is_kv_exact else 0
        return self.weights_bytes + self.reserve.total_bytes + cache_bytes

    @property
    def fits(self) -> bool:
        """Whether the device has the bytes."""
        return self.required_bytes <= self.usable_bytes

    @property
    def kv_tokens(self) -> int:
        """The tokens that the KV cache holds."""
        if not self.kv_token_bytes:
            return 0
        return self.kv_cache_memory_bytes // self.kv_token_bytes

    @property
    def sequences_at_max_len(self) -> int:
        """How many of the longest sequences the KV cache holds at once."""
        if not self.kv_sequence_bytes:
            return 0
        return self.kv_cache_memory_bytes // self.kv_sequence_bytes


def plan_memory(
    tensors: Sequence[Tensor],
    shape: ModelShape,
    options: MemoryOptions,
    device_bytes: int,
    memory_share: float = MEMORY_SHARE,
) -> MemoryPlan:
    """Return the plan of a model on devices of `device_bytes` each."""
    weights_bytes = max(stage_weights(tensors, shape, options))
    reserve = plan_reserve(tensors, shape, options, device_bytes)
    cache = plan_kv_cache(shape, options)
    available = int(device_bytes * memory_share) - weights_bytes - reserve.total_bytes
    kv_bytes = cache.blocks_within(available) * cache.block_bytes
    max_model_len = options.max_model_len or shape.context_tokens
    if max_model_len == FITTING_LEN:
        fitting = kv_bytes // cache.token_bytes if cache.token_bytes else shape.context_tokens
        max_model_len = max(1, min(shape.context_tokens, fitting))
    return MemoryPlan(
        model_type=shape.model_type,
        devices=options.tensor_parallel_size
        * options.pipeline_parallel_size
        * options.data_parallel_size,
        device_bytes=device_bytes,
        memory_share=memory_share,
        stored_bytes=stored_bytes(tensors),
        weights_bytes=weights_bytes,
        reserve=reserve,
        kv_token_bytes=cache.token_bytes,
        kv_block_tokens=cache.block_tokens,
        kv_cache_memory_bytes=kv_bytes,
        max_model_len=max_model_len,
        kv_sequence_bytes=cache.sequence_bytes(max_model_len),
        is_kv_exact=not cache.upper_bounds,
        notes=(*cache.upper_bounds, *_weight_notes(shape, options)),
    )


def require_fit(plan: MemoryPlan) -> None:
    """Raise ModelDoesNotFitError, with the numbers, if the device is too small."""
    if plan.fits:
        return
    parts = [
        f"{_gib(plan.weights_bytes)} of weights",
        f"{_gib(plan.reserve.activation_bytes)} of activations",
        f"{_gib(plan.reserve.graph_bytes + plan.reserve.runtime_bytes)} of graphs and runtime",
    ]
    if plan.reserve.adapter_bytes:
        parts.append(f"{_gib(plan.reserve.adapter_bytes)} of adapters")
    if plan.kv_sequence_bytes and plan.is_kv_exact:
        parts.append(
            f"{_gib(plan.kv_sequence_bytes)} of KV cache for one sequence of"
            f" {plan.max_model_len} tokens"
        )
    raise ModelDoesNotFitError(
        f"The model needs {' + '.join(parts)} = {_gib(plan.required_bytes)} on each device;"
        f" {_gib(plan.usable_bytes)} may be used"
        f" ({plan.memory_share:.0%} of {_gib(plan.device_bytes)}).",
        required_bytes=plan.required_bytes,
        usable_bytes=plan.usable_bytes,
    )


def _weight_notes(shape: ModelShape, options: MemoryOptions) -> list[str]:
    method = options.quantization
    if method is None or method in ONLINE_QUANTIZATIONS or shape.is_quantized:
        return []
    return [f"Unknown: what {method} saves. The weights count as not quantized."]


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"
