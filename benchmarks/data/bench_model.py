"""A random Llama that computes about as long for an item as real models do on real hardware.

The demo's tiny model answers a thousand requests a second on two cores, which no served model does;
with this one, offline generation stays below a hundred. Tokenizer and weights are the same
everywhere.
"""

import shutil
import tempfile
from pathlib import Path

import msgspec

from cli.demo.demo_models import ensure_tiny_llama

NAME = "bench-llama"
SEED = 20_260_101

_HIDDEN, _INTERMEDIATE, _LAYERS = 384, 1024, 6
_HEADS, _KV_HEADS, _HEAD_SIZE = 6, 2, 64
_WEIGHT_DEVIATION = 0.02


def ensure_bench_llama(cache: Path) -> Path:
    """Return the model's folder below `cache`, created unless it exists; its name has its size.

    The folder is created under a temporary name and renamed, so that no process reads half a model.
    """
    folder = cache / f"{NAME}-{_HIDDEN}x{_LAYERS}"
    if (folder / "config.json").is_file():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=cache))
    try:
        tiny = ensure_tiny_llama(staging / "tiny")
        made = staging / "made"
        made.mkdir()
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(tiny / name, made / name)
        config = msgspec.json.decode((tiny / "config.json").read_bytes(), type=dict[str, object])
        config |= {
            "hidden_size": _HIDDEN,
            "intermediate_size": _INTERMEDIATE,
            "num_hidden_layers": _LAYERS,
            "num_attention_heads": _HEADS,
            "num_key_value_heads": _KV_HEADS,
            "head_dim": _HEAD_SIZE,
        }
        vocabulary = config["vocab_size"]
        assert isinstance(vocabulary, int)
        _write_weights(made / "model.safetensors", vocabulary)
        (made / "config.json").write_bytes(msgspec.json.encode(config))
        made.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return folder


def shapes(vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of a Llama's weights; one-dimensional ones are norms."""
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, _HIDDEN),
        "model.norm.weight": (_HIDDEN,),
        "lm_head.weight": (vocabulary, _HIDDEN),
    }
    attention, values = _HEADS * _HEAD_SIZE, _KV_HEADS * _HEAD_SIZE
    layer = {
        "input_layernorm": (_HIDDEN,),
        "post_attention_layernorm": (_HIDDEN,),
        "self_attn.q_proj": (attention, _HIDDEN),
        "self_attn.k_proj": (values, _HIDDEN),
        "self_attn.v_proj": (values, _HIDDEN),
        "self_attn.o_proj": (_HIDDEN, attention),
        "mlp.gate_proj": (_INTERMEDIATE, _HIDDEN),
        "mlp.up_proj": (_INTERMEDIATE, _HIDDEN),
        "mlp.down_proj": (_HIDDEN, _INTERMEDIATE),
    }
    for number in range(_LAYERS):
        found |= {f"model.layers.{number}.{name}.weight": shape for name, shape in layer.items()}
    return found


def _write_weights(path: Path, vocabulary: int) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    random = np.random.default_rng(SEED)
    weights = {
        name: np.ones(shape, np.float16)
        if len(shape) == 1
        else (random.standard_normal(shape) * _WEIGHT_DEVIATION).astype(np.float16)
        for name, shape in shapes(vocabulary).items()
    }
    save_file(weights, path, metadata={"format": "pt"})
