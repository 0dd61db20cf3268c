"""Writes small safetensors files, valid or not, and the tensors of models by their sizes."""

import json
from pathlib import Path
from typing import Any

from registry.memory_plan.model_shape import ModelShape
from registry.memory_plan.safetensors_header import Tensor


def header_bytes(entries: dict[str, Any], data_bytes: int = 0) -> bytes:
    """Return a safetensors file with this header and so many bytes of data."""
    header = json.dumps(entries).encode()
    return len(header).to_bytes(8, "little") + header + bytes(data_bytes)


def entry(dtype: str, shape: list[int], start: int, end: int) -> dict[str, Any]:
    """Return the header's entry of a tensor."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def write_model(folder: Path, config: dict[str, Any], weights: bytes) -> Path:
    """Write a model folder with one file of weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def llama_config(**changes: Any) -> dict[str, Any]:
    """Return the configuration of Llama-3-8B, or of a variant."""
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    } | changes


def llama_tensors(shape: ModelShape, dtype: str = "BF16") -> list[Tensor]:
    """Return the tensors of a dense Llama of this shape."""
    hidden, inner, size = shape.hidden, shape.intermediate, shape.head_size
    found = [
        Tensor("model.embed_tokens.weight", dtype, (shape.vocabulary, hidden)),
        Tensor("model.norm.weight", dtype, (hidden,)),
        Tensor("lm_head.weight", dtype, (shape.vocabulary, hidden)),
    ]
    for layer in range(shape.layers):
        at = f"model.layers.{layer}"
        found += [
            Tensor(f"{at}.input_layernorm.weight", dtype, (hidden,)),
            Tensor(f"{at}.post_attention_layernorm.weight", dtype, (hidden,)),
            Tensor(f"{at}.self_attn.q_proj.weight", dtype, (shape.heads * size, hidden)),
            Tensor(f"{at}.self_attn.k_proj.weight", dtype, (shape.kv_heads * size, hidden)),
            Tensor(f"{at}.self_attn.v_proj.weight", dtype, (shape.kv_heads * size, hidden)),
            Tensor(f"{at}.self_attn.o_proj.weight", dtype, (hidden, shape.heads * size)),
            Tensor(f"{at}.mlp.gate_proj.weight", dtype, (inner, hidden)),
            Tensor(f"{at}.mlp.up_proj.weight", dtype, (inner, hidden)),
            Tensor(f"{at}.mlp.down_proj.weight", dtype, (hidden, inner)),
        ]
    return found
