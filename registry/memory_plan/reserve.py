"""The memory of a device that is neither weights nor KV cache.

vLLM measures it at the start; before the start it can only be estimated. The formulas count the
tensors of one step and the constants were measured on an H100, both rounded up
(`docs/memory_plan.md`). They were not measured for mixtures of experts and several devices.
"""

from collections.abc import Iterable
from math import ceil
from typing import Final

import msgspec

from registry.memory_plan.memory_options import MemoryOptions
from registry.memory_plan.model_shape import ModelShape
from registry.memory_plan.safetensors_header import Tensor
from registry.memory_plan.tensor_roles import TensorRole, role_of
from registry.memory_plan.weights import stage_layers

MIB: Final = 2**20
GIB: Final = 2**30

RUNTIME_BYTES: Final = 512 * MIB
"""Memory that the allocator does not control (230 MiB measured) and its fragmentation."""

COLLECTIVE_BYTES: Final = 1024 * MIB
"""Buffers of NCCL and of the custom all-reduce, with more than one device. Not measured."""

GRAPH_LAYER_BYTES: Final = 225 * 1024
"""Of CUDA graphs: for each layer and captured size."""

GRAPH_TOKEN_BYTES: Final = 20
"""Of CUDA graphs: for each token of all captured sizes together and element of a hidden state."""

LARGE_DEVICE_BYTES: Final = 70 * GIB
"""From here on vLLM's defaults of sequences and tokens of a step are larger (`arg_utils.py`)."""

CAPTURE_SIZE_MAX: Final = 512
"""The largest step that vLLM captures as a CUDA graph by default."""

STEP_BYTES: Final = 96 * MIB
"""Of a step of any size: 82 MiB at most were measured."""

_LOGIT_BYTES: Final = 12
"""For each sequence and token of the vocabulary: the logits as float32 and what sampling needs."""


class Reserve(msgspec.Struct, frozen=True):
    """Bytes of one device."""

    activation_bytes: int  # the tensors of the largest step
    graph_bytes: int  # CUDA graphs
    adapter_bytes: int  # LoRA slots
    runtime_bytes: int

    @property
    def total_bytes(self) -> int:
        """The sum."""
        return self.activation_bytes + self.graph_bytes + self.adapter_bytes + self.runtime_bytes


def plan_reserve(
    tensors: Iterable[Tensor], shape: ModelShape, options: MemoryOptions, total_bytes: int
) -> Reserve:
    """Return the reserve of a device that has `total_bytes` of memory in all."""
    sequences, tokens = step_size(options, total_bytes)
    world = options.tensor_parallel_size * options.pipeline_parallel_size
    is_alone = world * options.data_parallel_size == 1
    positions = shape.context_tokens * shape.head_size * options.dtype_bytes
    return Reserve(
        activation_bytes=step_bytes(shape, options, sequences, tokens),
        graph_bytes=0 if options.enforce_eager else graph_bytes(shape, options, sequences, tokens),
        adapter_bytes=adapter_bytes(tensors, shape, options),
        runtime_bytes=RUNTIME_BYTES + positions + (0 if is_alone else COLLECTIVE_BYTES),
    )


def step_size(options: MemoryOptions, total_bytes: int) -> tuple[int, int]:
    """Return the most sequences and tokens of a step: the options, or vLLM's defaults on a GPU.

    The defaults are those of vLLM's class `LLM`, the largest ones that it has for a device of this
    size, so that the plan is no less than any way to start vLLM needs.
    """
    is_large = total_bytes >= LARGE_DEVICE_BYTES
    tokens = options.max_num_batched_tokens or (16_384 if is_large else 8_192)
    sequences = options.max_num_seqs or (1_024 if is_large else 256)
    return min(sequences, tokens), tokens


def step_bytes(shape: ModelShape, options: MemoryOptions, sequences: int, tokens: int) -> int:
    """Return the bytes of the tensors that are alive at once in the largest step.

    For each token: the residual, the hidden state and its norm, and either the attention's queries,
    keys, values and output or the MLP's two inner states and their product. The logits of the
    sequences are added, although they come later, because the allocator keeps the blocks of both.
    """
    devices = options.tensor_parallel_size
    attention = 2 * (shape.heads + shape.kv_heads) * shape.head_size
    mlp = 3 * shape.intermediate
    if shape.experts_per_token:
        expert = 3 * shape.expert_intermediate + 2 * shape.hidden * devices
        mlp = max(mlp, shape.experts_per_token * expert)
    token_bytes = (3 * shape.hidden + ceil(max(attention, mlp) / devices)) * options.dtype_bytes
    return STEP_BYTES + tokens * token_bytes + sequences * shape.vocabulary * _LOGIT_BYTES


def graph_bytes(shape: ModelShape, options: MemoryOptions, sequences: int, tokens: int) -> int:
    """Return the bytes of the CUDA graphs of all captured sizes."""
    layers = max(stage_layers(shape.layers, options.pipeline_parallel_size))
    sizes = capture_sizes(options, sequences, tokens)
    token_bytes = sum(sizes) * shape.hidden * GRAPH_TOKEN_BYTES
    return token_bytes + len(sizes) * layers * GRAPH_LAYER_BYTES


def capture_sizes(options: MemoryOptions, sequences: int, tokens: int) -> list[int]:
    """Return the sizes of a step, in tokens, that vLLM captures (`_set_cudagraph_sizes`)."""
    if options.cudagraph_capture_sizes is not None:
        return sorted({size for size in options.cudagraph_capture_sizes if 0 < size <= tokens})
    largest = options.max_cudagraph_capture_size
    if largest is None:
        largest = min(2 * sequences, CAPTURE_SIZE_MAX)
    largest = min(largest, tokens)
    steps = [1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)]
    return [size for size in steps if size <= largest]


def adapter_bytes(tensors: Iterable[Tensor], shape: ModelShape, options: MemoryOptions) -> int:
    """Return the bytes of the LoRA slots on one device: vLLM allocates all of them at the start.

    Each linear layer has for each slot a matrix of rank × inputs and one of outputs × rank. With
    tensor parallelism one of the two is divided (`lora/layers/base_linear.py`). All stages of a
    pipeline count as one, which is an upper bound.
    """
    if not options.adapters_max:
        return 0
    devices = options.tensor_parallel_size
    total = 0
    for tensor in tensors:
        role = role_of(tensor, shape)
        if role in {TensorRole.WHOLE, TensorRole.UNUSED} or len(tensor.shape) < 2:
            continue
        *outer, outputs, inputs = tensor.shape
        count = 1
        for size in outer:
            count *= size
        match role:
            case TensorRole.COLUMN | TensorRole.FUSED_QKV:
                outputs = ceil(outputs / devices)
            case TensorRole.ROW:
                inputs = ceil(inputs / devices)
            case TensorRole.EXPERT:
                count = ceil(count / devices)
            case _:
                pass
        total += count * (outputs + inputs)
    return total * options.adapters_max * options.adapter_rank_max * 2
