"""The options that determine the memory of a model, under vLLM's own names."""

from collections.abc import Mapping
from typing import Any, Final, Self

import msgspec

from registry.engine_options.engine_options import InvalidOptionError

DEGREE_MAX: Final = 4096
"""The largest degree of parallelism."""

TOKENS_MAX: Final = 2**31
FITTING_LEN: Final = -1
"""As `max_model_len`: the longest sequence that fits, as in vLLM."""

CAPTURE_SIZE_MAX: Final = 2**20
"""The largest step, in tokens, that may be captured as a CUDA graph."""


class MemoryOptions(msgspec.Struct, frozen=True):
    """Options of a version and of its replica; `None` is vLLM's default."""

    dtype: str = "auto"
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    enable_expert_parallel: bool = False
    max_model_len: int | None = None  # tokens
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    enforce_eager: bool | None = None
    block_size: int | None = None  # tokens
    max_cudagraph_capture_size: int | None = None
    cudagraph_capture_sizes: list[int] | None = None
    speculative_config: dict[str, Any] | None = None
    adapters_max: int = 0  # LoRA adapters on the device at once
    adapter_rank_max: int = 16

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> Self:
        """Return the options that matter here; others are ignored. Raises InvalidOptionError."""
        known = {name: options[name] for name in cls.__struct_fields__ if name in options}
        for name, field in zip(cls.__struct_fields__, cls.__struct_defaults__, strict=True):
            if known.get(name, field) is None:
                known[name] = field
        try:
            found = msgspec.convert(known, cls)
        except msgspec.ValidationError as failure:
            raise InvalidOptionError(f"The engine options are not valid: {failure}.") from None
        _check_ranges(found)
        return found

    @property
    def dtype_bytes(self) -> int:
        """Bytes of an element of the model's type; vLLM loads float32 as 16 bits under `auto`."""
        return 4 if self.dtype in {"float", "float32"} else 2


def _check_ranges(options: MemoryOptions) -> None:
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
        _require_within(name, getattr(options, name), DEGREE_MAX)
    for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size"):
        value = getattr(options, name)
        if value is not None and (name, value) != ("max_model_len", FITTING_LEN):
            _require_within(name, value, TOKENS_MAX)
    if options.max_cudagraph_capture_size is not None:
        _require_within(
            "max_cudagraph_capture_size", options.max_cudagraph_capture_size, CAPTURE_SIZE_MAX
        )
    if options.adapters_max:
        _require_within("adapters_max", options.adapters_max, DEGREE_MAX)
        _require_within("adapter_rank_max", options.adapter_rank_max, DEGREE_MAX)


def _require_within(name: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise InvalidOptionError(f"`{name}` must be between 1 and {most}.")
