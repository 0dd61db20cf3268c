"""Generated LoRA adapters for the tiny Llama that change its greedy tokens."""

from pathlib import Path

import msgspec
import numpy as np
from safetensors.numpy import save, save_file

_HIDDEN, _LAYERS = 128, 2
_OUTPUTS = {"q_proj": 128, "v_proj": 64}
_DEVIATION = 1.0


def write_adapter(folder: Path, seed: int, *, rank: int = 8, **config: object) -> Path:
    """Write an adapter as PEFT does; `config` replaces fields of its configuration."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    tensors = {}
    for layer in range(_LAYERS):
        for name, outputs in _OUTPUTS.items():
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            for part, shape in (("lora_A", (rank, _HIDDEN)), ("lora_B", (outputs, rank))):
                noise = random.standard_normal(shape) * _DEVIATION
                tensors[f"{at}.{part}.weight"] = noise.astype(np.float16)
    save_file(tensors, folder / "adapter_model.safetensors")
    fields = {
        "peft_type": "LORA",
        "base_model_name_or_path": "tiny-llama",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": sorted(_OUTPUTS),
        "bias": "none",
    }
    (folder / "adapter_config.json").write_bytes(msgspec.json.encode(fields | config))
    return folder


def base_weights(*, hidden: int = _HIDDEN) -> bytes:
    """Return weights that have the modules which the adapters adapt, and others."""
    tensors = {
        f"model.layers.{layer}.self_attn.{name}.weight": np.zeros((outputs, hidden), np.float16)
        for layer in range(_LAYERS)
        for name, outputs in {**_OUTPUTS, "k_proj": 64}.items()
    }
    return save(tensors)
