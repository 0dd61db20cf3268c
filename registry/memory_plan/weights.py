"""The bytes of a model's weights on one device, after vLLM has loaded them."""

from collections.abc import Iterable
from fractions import Fraction
from math import ceil
from typing import Final

import msgspec

from registry.memory_plan.memory_options import MemoryOptions
from registry.memory_plan.model_shape import ModelShape
from registry.memory_plan.safetensors_header import Tensor
from registry.memory_plan.tensor_roles import TensorRole, is_output, layer_of, role_of

VOCABULARY_MULTIPLE: Final = 64
"""vLLM pads the vocabulary to a multiple of it (`vocab_parallel_embedding.py`)."""

_FLOATS: Final = frozenset({"F16", "BF16", "F32", "F64"})
_SCALE_BYTES: Final = 4
_BLOCK: Final = 128


class OnlineQuantization(msgspec.Struct, frozen=True):
    """What vLLM does to 16-bit weights while it loads them."""

    bits: int
    has_linear: bool = True  # linear layers outside experts are quantized
    has_experts: bool = True
    scale_per: str = "tensor"  # tensor, channel, block (128 × 128 elements) or group
    group: int = 0  # elements that share a scale of one byte


ONLINE_QUANTIZATIONS: Final = {
    "fp8": OnlineQuantization(8),
    "fp8_per_tensor": OnlineQuantization(8),
    "fp8_per_channel": OnlineQuantization(8, scale_per="channel"),
    "fp8_per_block": OnlineQuantization(8, scale_per="block"),
    "mxfp8": OnlineQuantization(8, scale_per="group", group=32),
    "experts_int8": OnlineQuantization(8, has_linear=False, scale_per="channel"),
    "int8_per_channel_weight_only": OnlineQuantization(8, has_linear=False, scale_per="channel"),
    "nvfp4_per_token": OnlineQuantization(4, has_linear=False, scale_per="group", group=16),
}
"""vLLM's methods for weights that are not quantized in the files
(`quantization/online/base.py`)."""

_MATRICES: Final = frozenset(
    {
        TensorRole.COLUMN,
        TensorRole.ROW,
        TensorRole.KEY_VALUE,
        TensorRole.FUSED_QKV,
        TensorRole.WHOLE_LINEAR,
    }
)


def stage_weights(
    tensors: Iterable[Tensor], shape: ModelShape, options: MemoryOptions
) -> list[int]:
    """Return the bytes of the weights on one device of each stage of the pipeline."""
    stages = stage_layers(shape.layers, options.pipeline_parallel_size)
    stage_of_layer = [stage for stage, count in enumerate(stages) for _ in range(count)]
    last = len(stages) - 1
    found = [0] * len(stages)
    has_draft = options.speculative_config is not None
    for tensor in tensors:
        role = role_of(tensor, shape, has_draft=has_draft)
        size = device_bytes(tensor, role, shape, options)
        layer = layer_of(tensor.name)
        if layer is not None:
            found[stage_of_layer[layer] if layer < shape.layers else last] += size
        elif is_output(tensor.name):
            found[last] += size
        else:
            found[0] += size
            is_shared = role is TensorRole.VOCABULARY and shape.has_tied_embeddings
            if last and is_shared:  # the last stage computes logits with its own copy
                found[last] += size
    return found


def stage_layers(layers: int, stages: int) -> list[int]:
    """Return the layers of each stage of a pipeline, as `get_pp_indices` of vLLM divides them."""
    counts = [layers // stages] * stages
    for place in range(layers % stages):
        counts[-min(place + 2, stages)] += 1
    return counts


def device_bytes(
    tensor: Tensor, role: TensorRole, shape: ModelShape, options: MemoryOptions
) -> int:
    """Return the bytes of a tensor on one device of its stage."""
    return ceil(loaded_bytes(tensor, role, shape, options) * _share(tensor, role, shape, options))


def loaded_bytes(
    tensor: Tensor, role: TensorRole, shape: ModelShape, options: MemoryOptions
) -> int:
    """Return the bytes of a whole tensor in the type in which vLLM keeps it."""
    if role is TensorRole.UNUSED:
        return 0
    elements = tensor.elements
    if role is TensorRole.VOCABULARY and tensor.shape:
        rows = ceil(tensor.shape[0] / VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
        elements = elements // max(tensor.shape[0], 1) * rows
    if tensor.dtype not in _FLOATS:
        return tensor.stored_bytes
    if shape.is_quantized:  # scales keep their type
        is_scale = "scale" in tensor.name.rsplit(".", 1)[-1]
        return tensor.stored_bytes if is_scale else elements * options.dtype_bytes
    method = ONLINE_QUANTIZATIONS.get(options.quantization or "")
    is_matrix = len(tensor.shape) >= 2 and not tensor.name.endswith("bias")
    if method is not None and is_matrix:
        covers = method.has_experts if role is TensorRole.EXPERT else method.has_linear
        if covers and (role in _MATRICES or role is TensorRole.EXPERT):
            return ceil(elements * method.bits / 8) + _scales(tensor, method)
    return elements * options.dtype_bytes


def _scales(tensor: Tensor, method: OnlineQuantization) -> int:
    *outer, rows, columns = tensor.shape
    count = 1
    for size in outer:
        count *= size
    match method.scale_per:
        case "channel":
            return count * rows * _SCALE_BYTES
        case "block":
            return count * ceil(rows / _BLOCK) * ceil(columns / _BLOCK) * _SCALE_BYTES
        case "group":
            return count * rows * ceil(columns / method.group)
        case _:
            return count * _SCALE_BYTES


def _share(tensor: Tensor, role: TensorRole, shape: ModelShape, options: MemoryOptions) -> Fraction:
    """Return the part of a tensor that one device has."""
    devices = options.tensor_parallel_size
    local_kv_heads = max(1, shape.kv_heads // devices)
    match role:
        case TensorRole.COLUMN | TensorRole.VOCABULARY:
            return Fraction(1, devices)
        case TensorRole.ROW:
            return Fraction(1, 1 if tensor.name.endswith("bias") else devices)
        case TensorRole.KEY_VALUE:
            return min(Fraction(1), Fraction(local_kv_heads, max(shape.kv_heads, 1)))
        case TensorRole.FUSED_QKV:
            local = Fraction(shape.heads, devices) + 2 * local_kv_heads
            return min(Fraction(1), local / max(shape.heads + 2 * shape.kv_heads, 1))
        case TensorRole.EXPERT:
            return Fraction(1, devices * options.data_parallel_size)
        case _:
            return Fraction(1)


def stored_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of all tensors in the files."""
    return sum(tensor.stored_bytes for tensor in tensors)
