"""Checks a LoRA adapter before it is stored: its configuration and the names of its tensors.

An adapter is files in PEFT's form: `adapter_config.json` and `adapter_model.safetensors`. vLLM
ignores or refuses some of what PEFT can write; such an adapter would fail at the replica, or answer
otherwise than its author saw. The weights themselves are not read. Pure.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from core.errors import Disposition, MillraceError

CONFIG_NAME: Final = "adapter_config.json"
WEIGHTS_NAME: Final = "adapter_model.safetensors"

HEADER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of the header of a safetensors file; that of a large adapter has 2 MiB."""

LENGTH_BYTES: Final = 8
"""Bytes at the start of a safetensors file, which hold the length of its header (little endian)."""

_DTYPES: Final = frozenset({"F32", "F16", "BF16"})
_PREFIX: Final = "base_model.model."
_TENSOR: Final = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<part>[AB])\.weight")
_HEADS: Final = frozenset({"classifier", "score"})
"""The modules that vLLM takes whole from an adapter (PEFT's `modules_to_save`)."""

_PLAIN_INITS: Final = frozenset({"gaussian", "eva", "orthogonal", "mica", "lora_ga"})
"""Initialisations that leave the weights of the base model as they are; PiSSA, for example, changes
them when PEFT loads the adapter, and vLLM does not."""

_UNSUPPORTED: Final[Mapping[str, str]] = {
    "use_dora": "weight-decomposed adapters (DoRA)",
    "lora_bias": "biases",
    "alora_invocation_tokens": "activated adapters (aLoRA)",
    "layer_replication": "layer replication",
    "use_bdlora": "block-diagonal adapters",
    "use_qalora": "quantization-aware adapters",
    "trainable_token_indices": "trained tokens",
}
"""Fields that, when set, ask for what vLLM does not do."""


class InvalidAdapterError(MillraceError):
    """The files are no adapter that can be served."""

    code = "adapter_invalid"
    disposition = Disposition.REJECT


class TensorInfo(msgspec.Struct, frozen=True):
    """A tensor of a safetensors file."""

    dtype: str
    shape: tuple[int, ...]


class AdapterConfig(msgspec.Struct, frozen=True):
    """Those fields of PEFT's configuration that are checked by value."""

    r: int
    lora_alpha: float
    target_modules: list[str] | str
    peft_type: str = "LORA"
    base_model_name_or_path: str | None = None
    bias: str = "none"
    modules_to_save: list[str] | None = None
    init_lora_weights: bool | str | None = True
    rank_pattern: dict[str, int] | None = None

    @property
    def rank_max(self) -> int:
        """The largest rank of a module."""
        return max([self.r, *(self.rank_pattern or {}).values()])


_CONFIG: Final = msgspec.json.Decoder(AdapterConfig)
_HEADER: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TENSOR_INFO: Final = msgspec.json.Decoder(TensorInfo)


def check_adapter(
    config: bytes,
    tensors: Mapping[str, TensorInfo],
    *,
    base: str | None,
    base_tensors: Mapping[str, TensorInfo] | None,
    rank_max: int,
) -> AdapterConfig:
    """Return the configuration of an adapter that may be served. Raises InvalidAdapterError.

    `base` is the version of the model that it adapts, as its manifest names it. Without
    `base_tensors`, the adapter's modules are not compared with those of the base. `rank_max` is the
    largest rank that replicas take (`adapter_rank_max`).
    """
    if not base:
        raise InvalidAdapterError("The adapter names no version of a base model.")
    parsed = _checked_config(config)
    if parsed.rank_max > rank_max:
        raise InvalidAdapterError(
            f"The adapter has rank {parsed.rank_max}; replicas take {rank_max} at most."
        )
    _check_tensors(parsed, tensors, base_tensors)
    return parsed


def parse_header(data: bytes) -> dict[str, TensorInfo]:
    """Return the tensors of a safetensors file by name, from its first bytes.

    `data` holds the length and the whole header, and may hold more. Raises InvalidAdapterError.
    """
    length = header_length(data)
    content = data[LENGTH_BYTES : LENGTH_BYTES + length]
    if len(content) < length:
        raise InvalidAdapterError("The safetensors file ends within its header.")
    try:
        fields = _HEADER.decode(content)
        fields.pop("__metadata__", None)
        return {name: _TENSOR_INFO.decode(info) for name, info in fields.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as failure:
        raise InvalidAdapterError(f"The safetensors header is not valid: {failure}.") from None


def header_length(data: bytes) -> int:
    """Return the length of the header, by the first bytes of the file.

    Raises InvalidAdapterError for one above `HEADER_BYTES_MAX`.
    """
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    if len(data) < LENGTH_BYTES or not 0 < length <= HEADER_BYTES_MAX:
        raise InvalidAdapterError("The weights are no safetensors file with a header of 16 MiB.")
    return length


def _checked_config(config: bytes) -> AdapterConfig:
    try:
        parsed = _CONFIG.decode(config)
        fields: dict[str, Any] = msgspec.json.decode(config)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as failure:
        raise InvalidAdapterError(f"{CONFIG_NAME} is not valid: {failure}.") from None
    if parsed.peft_type != "LORA":
        raise InvalidAdapterError(f"Only LoRA adapters are served, not {parsed.peft_type!r}.")
    if min([parsed.r, *(parsed.rank_pattern or {}).values()]) < 1:
        raise InvalidAdapterError("The rank of an adapter is at least 1.")
    if parsed.bias != "none":
        raise InvalidAdapterError("vLLM serves no adapters with biases.")
    for name, what in _UNSUPPORTED.items():
        if fields.get(name):
            raise InvalidAdapterError(f"vLLM serves no {what}, which `{name}` asks for.")
    init = parsed.init_lora_weights
    if isinstance(init, str) and init.lower() not in _PLAIN_INITS:
        raise InvalidAdapterError(
            f"The initialisation {init!r} changes the weights of the base model; convert the "
            "adapter to a plain one with PEFT."
        )
    if unsupported := set(parsed.modules_to_save or ()) - _HEADS:
        raise InvalidAdapterError(
            f"vLLM takes only {', '.join(sorted(_HEADS))} whole from an adapter, not "
            f"{', '.join(sorted(unsupported))} (`modules_to_save`)."
        )
    if not parsed.target_modules:
        raise InvalidAdapterError("The adapter targets no modules.")
    return parsed


def _check_tensors(
    config: AdapterConfig,
    tensors: Mapping[str, TensorInfo],
    base_tensors: Mapping[str, TensorInfo] | None,
) -> None:
    parts: dict[str, dict[str, TensorInfo]] = {}
    for name, info in tensors.items():
        if info.dtype not in _DTYPES:
            raise InvalidAdapterError(f"The tensor {name!r} has the type {info.dtype}.")
        if found := _TENSOR.fullmatch(name):
            parts.setdefault(found["module"], {})[found["part"]] = info
        elif not _is_head(name, config):
            raise InvalidAdapterError(f"vLLM does not know the tensor {name!r} of an adapter.")
    if not parts:
        raise InvalidAdapterError("The weights hold no LoRA tensors.")
    modules = None if base_tensors is None else _modules(base_tensors)
    known_tails = {_tail(module) for module in modules or ()}
    for module, pair in parts.items():
        _check_pair(config, module, pair)
        if modules is None or base_tensors is None:
            continue
        if module not in modules and _tail(module) not in known_tails:
            raise InvalidAdapterError(f"The base model has no module {module!r}.")
        _check_fit(module, pair, base_tensors.get(f"{module}.weight"))


def _check_pair(config: AdapterConfig, module: str, pair: Mapping[str, TensorInfo]) -> None:
    if pair.keys() != {"A", "B"}:
        raise InvalidAdapterError(f"One of the two matrices of {module!r} is missing.")
    inner, outer = pair["A"].shape, pair["B"].shape
    if len(inner) < 2 or len(outer) < 2 or inner[0] != outer[-1]:
        raise InvalidAdapterError(f"The two matrices of {module!r} do not fit each other.")
    if inner[0] > config.rank_max:
        raise InvalidAdapterError(
            f"The matrices of {module!r} have rank {inner[0]}, above that of the configuration."
        )


def _check_fit(module: str, pair: Mapping[str, TensorInfo], base: TensorInfo | None) -> None:
    """Compare the shapes with those of a base weight; packed weights have others."""
    if base is None or base.dtype not in _DTYPES or len(base.shape) != 2:
        return
    if (pair["B"].shape[0], pair["A"].shape[-1]) != base.shape:
        raise InvalidAdapterError(f"The matrices of {module!r} do not fit those of the base model.")


def _modules(tensors: Iterable[str]) -> set[str]:
    return {name.rpartition(".")[0] for name in tensors}


def _tail(module: str) -> str:
    """Return a module's name from its layer on.

    PEFT writes names of modules in memory, and some models are stored under other prefixes: see
    `_checkpoint_conversion_mapping` in transformers, and `hf_to_vllm_mapper` in vLLM.
    """
    _, found, tail = module.partition(".layers.")
    return found + tail if found else module


def _is_head(name: str, config: AdapterConfig) -> bool:
    module = name.removeprefix(_PREFIX).rpartition(".")[0]
    return name.startswith(_PREFIX) and module in set(config.modules_to_save or ())
