"""The bytes of the KV cache for each token, and how many tokens fit."""

from math import ceil
from typing import Final

import msgspec

from registry.memory_plan.memory_options import MemoryOptions
from registry.memory_plan.model_shape import AttentionKind, ModelShape
from registry.memory_plan.weights import stage_layers

BLOCK_TOKENS: Final = 16
"""vLLM's usual block; some attention backends choose a larger one."""

_SPARSE_LATENT_BYTES: Final = 656
"""`fp8_ds_mla`: 512 bytes of fp8, 16 of scales and 128 of the rotary part in bfloat16
(`flashmla_sparse.py` of vLLM)."""

_INDEXER_SCALE_BYTES: Final = 4
_HEAD_SCALE_BYTES: Final = 4
_FP8: Final = frozenset({"fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"})
_PER_HEAD: Final = frozenset({"fp8_per_token_head", "int8_per_token_head"})
_PLAIN: Final = frozenset({"auto", "bfloat16", "float16"})


class KvCache(msgspec.Struct, frozen=True):
    """The KV cache of one device, on the stage of a pipeline that needs most."""

    token_bytes: int  # of all layers of the stage
    block_tokens: int
    upper_bounds: tuple[str, ...] = ()  # why the true size may be less, or is not known

    @property
    def block_bytes(self) -> int:
        """The bytes of a block in all layers of the stage."""
        return self.token_bytes * self.block_tokens

    def blocks_within(self, available_bytes: int) -> int:
        """Return how many whole blocks fit."""
        return max(0, available_bytes) // self.block_bytes if self.token_bytes else 0

    def sequence_bytes(self, tokens: int) -> int:
        """Return the bytes that a sequence of so many tokens needs."""
        return ceil(tokens / self.block_tokens) * self.block_bytes


def plan_kv_cache(shape: ModelShape, options: MemoryOptions) -> KvCache:
    """Return the size of the KV cache of a model."""
    layers = max(stage_layers(shape.layers, options.pipeline_parallel_size))
    return KvCache(
        token_bytes=layers * layer_token_bytes(shape, options),
        block_tokens=options.block_size or BLOCK_TOKENS,
        upper_bounds=tuple(_upper_bounds(shape, options)),
    )


def layer_token_bytes(shape: ModelShape, options: MemoryOptions) -> int:
    """Return the bytes of a token in one layer on one device.

    Keys and values of the KV heads of the device; with fewer heads than devices each device has
    one. A compressed vector (MLA) is not divided: each device has it whole.
    """
    kind = options.kv_cache_dtype
    match shape.attention:
        case AttentionKind.NONE:
            return 0
        case AttentionKind.LATENT:
            if kind == "fp8_ds_mla":
                size = _SPARSE_LATENT_BYTES
            else:
                size = shape.latent * _element_bytes(options)
            indexer = shape.indexer + _INDEXER_SCALE_BYTES if shape.indexer else 0
            return size + indexer
        case AttentionKind.HEADS:
            heads = max(1, shape.kv_heads // options.tensor_parallel_size)
            scale = _HEAD_SCALE_BYTES if kind in _PER_HEAD else 0
            return 2 * heads * (shape.head_size * _element_bytes(options) + scale)


def _element_bytes(options: MemoryOptions) -> int:
    if options.kv_cache_dtype in _FP8 | _PER_HEAD:
        return 1
    return options.dtype_bytes if options.kv_cache_dtype == "auto" else 2


def _upper_bounds(shape: ModelShape, options: MemoryOptions) -> list[str]:
    """Return the reasons why the size is an upper bound, or not known."""
    found: list[str] = []
    if shape.attention is AttentionKind.NONE:
        return found
    if not shape.heads:
        return ["Unknown: the state of the layers, which have no attention."]
    if shape.sliding_window:
        found.append(
            f"Layers with a window of {shape.sliding_window} tokens count as if they kept all."
        )
    if shape.has_recurrent_layers:
        found.append(
            "Unknown: the state of recurrent layers. All layers count as attention, which is more"
            " for all but short sequences."
        )
    if shape.has_encoder_decoder:
        found.append("Unknown: the cross-attention of an encoder-decoder is not counted.")
    if options.kv_cache_dtype not in _PLAIN | _FP8 | _PER_HEAD | {"fp8_ds_mla"}:
        found.append(f"{options.kv_cache_dtype} is packed more densely than the 16 bits counted.")
    return found
