"""The KV cache of public models, by the sizes of their configurations."""

from typing import Any

import pytest

from registry.memory_plan.kv_cache import layer_token_bytes, plan_kv_cache
from registry.memory_plan.memory_options import MemoryOptions
from registry.memory_plan.model_shape import InvalidConfigError, shape_of
from tests.support.weight_files import llama_config

QWEN3_06B = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "sliding_window": None,
    "use_sliding_window": False,
}
MIXTRAL_8X7B = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "sliding_window": None,
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "num_experts_per_tok": 8,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
}
BERT = {
    "model_type": "bert",
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
}
FALCON_7B = {
    "model_type": "falcon",
    "hidden_size": 4544,
    "num_hidden_layers": 32,
    "num_attention_heads": 71,
    "multi_query": True,
    "vocab_size": 65024,
}


@pytest.mark.parametrize(
    ("config", "options", "token_bytes"),
    [
        (llama_config(), {}, 131_072),
        (llama_config(), {"kv_cache_dtype": "fp8"}, 65_536),
        (llama_config(), {"kv_cache_dtype": "fp8_per_token_head"}, 32 * 2 * 8 * 132),
        (llama_config(), {"dtype": "float32"}, 262_144),
        (llama_config(), {"tensor_parallel_size": 4}, 32_768),
        (llama_config(), {"tensor_parallel_size": 16}, 16_384),  # one KV head on each device
        (llama_config(), {"pipeline_parallel_size": 2}, 65_536),
        (QWEN3_06B, {}, 114_688),
        (MIXTRAL_8X7B, {}, 131_072),
        (DEEPSEEK_V3, {}, 61 * 576 * 2),
        (DEEPSEEK_V3, {"tensor_parallel_size": 8}, 61 * 576 * 2),  # not divided
        (DEEPSEEK_V3 | {"index_topk": 2048, "index_head_dim": 128}, {}, 61 * (1152 + 132)),
        (DEEPSEEK_V3, {"kv_cache_dtype": "fp8_ds_mla"}, 61 * 656),
        (FALCON_7B, {}, 32 * 2 * 64 * 2),
        (BERT, {}, 0),
    ],
)
def test_bytes_of_a_token(
    config: dict[str, Any], options: dict[str, Any], token_bytes: int
) -> None:
    cache = plan_kv_cache(shape_of(config), MemoryOptions.from_mapping(options))
    assert cache.token_bytes == token_bytes
    assert cache.upper_bounds == ()


def test_a_block_has_all_layers_of_a_stage() -> None:
    cache = plan_kv_cache(shape_of(llama_config()), MemoryOptions())
    assert cache.block_bytes == 131_072 * 16
    assert cache.blocks_within(5 * cache.block_bytes - 1) == 4
    assert cache.blocks_within(-1) == 0
    assert cache.sequence_bytes(17) == 2 * cache.block_bytes


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sliding_window": 4096}, "window of 4096"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "recurrent"),
        ({"mamba_d_state": 16}, "recurrent"),
        ({"is_encoder_decoder": True}, "cross-attention"),
    ],
)
def test_what_is_not_known_is_said(changes: dict[str, Any], words: str) -> None:
    cache = plan_kv_cache(shape_of(llama_config(**changes)), MemoryOptions())
    assert cache.token_bytes == 131_072
    assert words in cache.upper_bounds[0]


def test_a_cache_of_unknown_density_counts_as_16_bits_and_says_so() -> None:
    options = MemoryOptions(kv_cache_dtype="nvfp4")
    cache = plan_kv_cache(shape_of(llama_config()), options)
    assert cache.token_bytes == 131_072
    assert "nvfp4" in cache.upper_bounds[0]


def test_a_model_of_several_modalities_counts_its_language_model() -> None:
    config = {"model_type": "llava", "text_config": llama_config(), "vision_config": {"x": 1}}
    assert layer_token_bytes(shape_of(config), MemoryOptions()) == 131_072 // 32


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 10**9},
        {"num_hidden_layers": -1},
        {"num_hidden_layers": "many"},
        {"num_hidden_layers": None},
        {"hidden_size": 2**40},
        {"hidden_size": True},
    ],
)
def test_a_configuration_without_sane_sizes_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfigError):
        shape_of(llama_config(**changes))
