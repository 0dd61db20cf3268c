"""The engine hash: which engine computed an answer, as 64 hex digits.

It is the SHA-256 of canonical JSON of vLLM's version, the device, and the options as vLLM resolved
them. Two replicas of equal hash compute alike; no path, port or id is part of it, so a restart
keeps it.
"""

from collections.abc import Mapping
from enum import Enum
from hashlib import sha256
from typing import Any, Final

import msgspec
import vllm
from vllm.platforms import current_platform

from gpu_consumers.engines.vllm.engine_config import EngineConfig
from registry.engine_options.denied_options import DENIED, MAPPING_KEYS
from registry.engine_options.engine_options import option_table

_OWN_OPTIONS: Final = ("enable_lora", "max_loras", "max_lora_rank", "override_generation_config")
"""Options that a version may not set and that still say how answers are computed."""

_PARTS: Final = (
    "model_config",
    "cache_config",
    "scheduler_config",
    "parallel_config",
    "lora_config",
)
"""Parts of the configuration whose fields have the names of options."""

_INNER_NAMES: Final[Mapping[str, tuple[str, str]]] = {
    "kv_cache_dtype": ("cache_config", "cache_dtype")
}

_ENCODER: Final = msgspec.json.Encoder(order="sorted")


def engine_hash(engine: EngineConfig) -> str:
    """Return the hash of an engine with this configuration on this machine."""
    described = {
        "vllm": vllm.__version__,
        "device": device_facts(),
        "options": resolved_options(engine),
    }
    return sha256(_ENCODER.encode(described)).hexdigest()


def device_facts() -> dict[str, str]:
    """Return what is known of the device: its type, name and compute capability."""
    capability = current_platform.get_device_capability()
    return {
        "type": current_platform.device_type,
        "name": current_platform.get_device_name(),
        "capability": "" if capability is None else str(capability.to_int()),
    }


def resolved_options(engine: EngineConfig) -> dict[str, Any]:
    """Return the value of each option that a version may set, as vLLM resolved it."""
    names = [name for name in option_table().options if name not in DENIED]
    return {name: _plain(name, _resolved(engine, name)) for name in (*names, *_OWN_OPTIONS)}


def _resolved(engine: EngineConfig, name: str) -> Any:
    """Return an option as the engine has it; as it was given, if the engine does not know it."""
    if name in _INNER_NAMES:
        part, field = _INNER_NAMES[name]
        return getattr(getattr(engine.config, part), field)
    parts = [engine.config, *(getattr(engine.config, part) for part in _PARTS), engine.args]
    for part in parts:
        if part is not None and hasattr(part, name):
            return getattr(part, name)
    return getattr(engine.parsed, name, None)


def _plain(name: str, value: Any) -> Any:
    """Return a value as JSON; of objects the keys that a version may set."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Mapping):
        return {str(key): _plain("", inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain("", inner) for inner in value]
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if keys := MAPPING_KEYS.get(name):
        return {key: _plain("", getattr(value, key, None)) for key in keys}
    text = str(value)  # data types of torch, such as `torch.bfloat16`
    return text if text.startswith("torch.") else type(value).__name__
