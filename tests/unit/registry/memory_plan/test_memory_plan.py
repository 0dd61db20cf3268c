"""The plan of a model: weights on each device, what is left for the KV cache, and refusals."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from cli.admin.memory_plan_view import HEADERS, plan_rows
from cli.demo.demo_models import ensure_tiny_llama
from registry.engine_options.engine_options import InvalidOptionError
from registry.memory_plan.memory_options import MemoryOptions
from registry.memory_plan.memory_plan import (
    MemoryPlan,
    ModelDoesNotFitError,
    plan_memory,
    require_fit,
)
from registry.memory_plan.model_folder_plan import plan_of_folder, read_tensors
from registry.memory_plan.model_shape import InvalidConfigError, shape_of
from registry.memory_plan.plan_document import plan_document
from registry.memory_plan.reserve import capture_sizes
from registry.memory_plan.safetensors_header import InvalidWeightsError, Tensor
from registry.memory_plan.weights import stage_layers, stage_weights
from tests.support.weight_files import (
    entry,
    header_bytes,
    llama_config,
    llama_tensors,
    write_model,
)

GIB = 2**30
LLAMA_8B_PARAMETERS = 8_030_261_248


def _plan(device_gib: int = 80, config: dict[str, Any] | None = None, **options: Any) -> MemoryPlan:
    shape = shape_of(config or llama_config())
    known = MemoryOptions.from_mapping(options)
    return plan_memory(llama_tensors(shape), shape, known, device_gib * GIB)


def test_llama_8b_on_one_device() -> None:
    plan = _plan()
    assert plan.weights_bytes == plan.stored_bytes == 2 * LLAMA_8B_PARAMETERS
    assert plan.kv_token_bytes == 131_072
    assert plan.kv_sequence_bytes == GIB
    assert plan.kv_cache_memory_bytes % (16 * plan.kv_token_bytes) == 0
    assert plan.weights_bytes + plan.reserve.total_bytes + plan.kv_cache_memory_bytes <= (
        plan.usable_bytes
    )
    assert plan.sequences_at_max_len == plan.kv_cache_memory_bytes // GIB > 30
    require_fit(plan)


def test_a_model_that_does_not_fit_is_refused_with_its_numbers() -> None:
    plan = _plan(16)
    with pytest.raises(ModelDoesNotFitError) as refusal:
        require_fit(plan)
    message = str(refusal.value)
    assert "14.96 GiB of weights" in message
    assert "1.00 GiB of KV cache for one sequence of 8192 tokens" in message
    assert "14.40 GiB may be used (90% of 16.00 GiB)" in message
    assert plan.kv_cache_memory_bytes == plan.kv_tokens == plan.sequences_at_max_len == 0


def test_a_device_that_holds_the_weights_and_no_sequence_is_too_small() -> None:
    small: dict[str, Any] = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 2048,
        "enforce_eager": True,
    }
    require_fit(_plan(20, max_model_len=2048, **small))
    with pytest.raises(ModelDoesNotFitError, match="one sequence of 131072 tokens"):
        require_fit(_plan(20, max_model_len=131_072, **small))


def test_a_length_that_fits_is_found() -> None:
    small: dict[str, Any] = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 2048,
        "enforce_eager": True,
    }
    assert _plan(80, max_model_len=-1, **small).max_model_len == 8192
    plan = _plan(18, max_model_len=-1, **small)
    assert 16 <= plan.max_model_len == plan.kv_tokens < 8192
    require_fit(plan)
    with pytest.raises(ModelDoesNotFitError):
        require_fit(_plan(15, max_model_len=-1, **small))


def test_fp8_halves_the_linear_layers_alone() -> None:
    plan = _plan(quantization="fp8")
    whole = 2 * (2 * 128_256 * 4096 + 65 * 4096)  # embeddings and norms
    linear = 2 * LLAMA_8B_PARAMETERS - whole
    scales = 32 * 7 * 4
    assert plan.weights_bytes == whole + linear // 2 + scales


def test_a_method_that_is_not_known_counts_as_none_and_says_so() -> None:
    plan = _plan(quantization="torchao")
    assert plan.weights_bytes == 2 * LLAMA_8B_PARAMETERS
    assert "torchao" in plan.notes[0]


def test_weights_quantized_in_the_files_count_as_stored() -> None:
    shape = shape_of(llama_config(quantization_config={"quant_method": "fp8"}))
    tensors = [
        Tensor("model.layers.0.mlp.up_proj.weight", "F8_E4M3", (14336, 4096)),
        Tensor("model.layers.0.mlp.up_proj.weight_scale", "F32", (14336, 1)),
        Tensor("model.norm.weight", "F32", (4096,)),
    ]
    options = MemoryOptions(quantization="fp8")
    assert stage_weights(tensors, shape, options) == [14336 * 4096 + 4 * 14336 + 2 * 4096]


def test_tensor_parallelism_divides_all_but_norms() -> None:
    shape = shape_of(llama_config())
    norms = 65 * 4096 * 2
    alone = stage_weights(llama_tensors(shape), shape, MemoryOptions())[0]
    for devices in (2, 4, 8):
        options = MemoryOptions(tensor_parallel_size=devices)
        assert stage_weights(llama_tensors(shape), shape, options) == [
            (alone - norms) // devices + norms
        ]


def test_the_vocabulary_is_padded_and_tied_embeddings_count_once() -> None:
    shape = shape_of(llama_config(vocab_size=100, tie_word_embeddings=True, num_hidden_layers=1))
    tensors = [
        Tensor("model.embed_tokens.weight", "BF16", (100, 4096)),
        Tensor("lm_head.weight", "BF16", (100, 4096)),
    ]
    assert stage_weights(tensors, shape, MemoryOptions()) == [128 * 4096 * 2]


def test_experts_are_divided_by_tensor_and_data_parallelism() -> None:
    shape = shape_of(llama_config())
    tensors = [
        Tensor(f"model.layers.0.block_sparse_moe.experts.{expert}.w1.weight", "BF16", (64, 64))
        for expert in range(8)
    ]
    options = MemoryOptions(tensor_parallel_size=2, data_parallel_size=2)
    assert stage_weights(tensors, shape, options) == [8 * 64 * 64 * 2 // 4]


def test_draft_layers_count_with_speculative_decoding_alone() -> None:
    shape = shape_of(llama_config(num_hidden_layers=2))
    tensors = [Tensor("model.layers.2.mlp.up_proj.weight", "BF16", (64, 64))]
    assert stage_weights(tensors, shape, MemoryOptions()) == [0]
    options = MemoryOptions(speculative_config={"method": "mtp"})
    assert stage_weights(tensors, shape, options) == [64 * 64 * 2]


@pytest.mark.parametrize(
    ("layers", "stages", "counts"),
    [(32, 2, [16, 16]), (61, 4, [15, 15, 16, 15]), (7, 3, [2, 3, 2]), (5, 2, [3, 2])],
)
def test_layers_of_a_pipeline(layers: int, stages: int, counts: list[int]) -> None:
    assert stage_layers(layers, stages) == counts


def test_the_sizes_that_vllm_captures() -> None:
    assert len(capture_sizes(MemoryOptions(), 1024, 16_384)) == 51  # as seen on an H100
    assert len(capture_sizes(MemoryOptions(), 128, 2048)) == 35
    assert capture_sizes(MemoryOptions(), 2, 2048) == [1, 2, 4]
    assert capture_sizes(MemoryOptions(cudagraph_capture_sizes=[8, 8, 4]), 2, 2048) == [4, 8]
    assert _plan(enforce_eager=True).reserve.graph_bytes == 0


def test_adapters_take_a_slot_in_each_linear_layer() -> None:
    measured = 124_377_088  # vLLM 0.26 on an H100, with 1 MiB that is no adapter
    config = llama_config(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, head_dim=64
    )
    plan = _plan(config=config, adapters_max=4, adapter_rank_max=16)
    assert 0.98 * measured < plan.reserve.adapter_bytes <= measured


@pytest.mark.parametrize(
    ("config", "options", "needed_mib"),
    [
        # Beyond weights and KV cache, after generation: vLLM 0.26 on an H100.
        ({}, {}, 2793),
        ({}, {"quantization": "fp8", "kv_cache_dtype": "fp8"}, 2445),
        ({}, {"max_num_seqs": 128, "max_num_batched_tokens": 2048}, 798),
        (
            {},
            {"max_num_seqs": 128, "max_num_batched_tokens": 2048, "enforce_eager": True},
            557,
        ),
    ],
)
def test_the_reserve_covers_what_was_measured_and_not_twice_of_it(
    config: dict[str, Any], options: dict[str, Any], needed_mib: int
) -> None:
    shape = llama_config(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        head_dim=64,
        max_position_embeddings=131_072,
        **config,
    )
    reserve = _plan(79, config=shape, **options).reserve.total_bytes / 2**20
    assert needed_mib < reserve < 2 * needed_mib


def test_the_weights_of_the_tiny_model_are_what_is_loaded(tmp_path: Path) -> None:
    folder = ensure_tiny_llama(tmp_path / "tiny")
    plan = plan_of_folder(folder, {"dtype": "bfloat16"}, 16 * GIB)
    loaded = load_file(folder / "model.safetensors")
    assert plan.weights_bytes == sum(array.nbytes for array in loaded.values())
    assert plan.kv_token_bytes == 512
    assert not plan.notes


def test_a_model_is_not_refused_for_an_upper_bound_of_its_kv_cache() -> None:
    long: dict[str, Any] = {"max_num_seqs": 8, "max_num_batched_tokens": 2048}
    config = llama_config(max_position_embeddings=131_072)
    with pytest.raises(ModelDoesNotFitError):
        require_fit(_plan(24, config=config, **long))
    plan = _plan(24, config=config | {"sliding_window": 4096}, **long)
    require_fit(plan)
    assert not plan.is_kv_exact
    assert "4096" in plan.notes[0]


def test_a_model_without_attention_has_a_plan_of_its_weights() -> None:
    config = llama_config(model_type="mamba", num_attention_heads=None, num_key_value_heads=None)
    shape = shape_of(config)
    tensors = [Tensor("backbone.layers.0.mixer.in_proj.weight", "BF16", (64, 64))]
    plan = plan_memory(tensors, shape, MemoryOptions(), 16 * GIB)
    assert plan.weights_bytes == 64 * 64 * 2
    assert plan.kv_cache_memory_bytes == 0
    assert "no attention" in plan.notes[0]
    require_fit(plan)


def test_an_encoder_needs_no_kv_cache() -> None:
    plan = _plan(config=llama_config(model_type="bert"))
    assert plan.kv_cache_memory_bytes == plan.kv_sequence_bytes == plan.sequences_at_max_len == 0
    require_fit(plan)
    assert "KV" not in " ".join(cell for row in plan_rows(plan) for cell in row)


def test_options_of_a_version_that_do_not_matter_are_ignored() -> None:
    options = {"max_model_len": None, "attention_backend": "FLASH_ATTN", "max_num_seqs": 4}
    assert MemoryOptions.from_mapping(options) == MemoryOptions(max_num_seqs=4)


@pytest.mark.parametrize(
    "options",
    [
        {"tensor_parallel_size": 0},
        {"tensor_parallel_size": "two"},
        {"max_model_len": -2},
        {"adapters_max": -1},
        {"max_cudagraph_capture_size": 2**31},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError):
        MemoryOptions.from_mapping(options)


def test_an_index_names_the_files_that_count(tmp_path: Path) -> None:
    part = header_bytes({"a": entry("F32", [1], 0, 4)}, 4)
    folder = write_model(tmp_path, llama_config(), part)
    (folder / "consolidated.safetensors").write_bytes(part)
    assert [one.name for one in read_tensors(folder)] == ["a"]
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "other"}}')
    with pytest.raises(InvalidWeightsError, match="'other', which is missing"):
        read_tensors(folder)


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    part = header_bytes({"a": entry("F32", [1], 0, 4)}, 4)
    folder = write_model(tmp_path, llama_config(), part)
    (folder / "second.safetensors").write_bytes(part)
    with pytest.raises(InvalidWeightsError, match="two files"):
        read_tensors(folder)


def test_a_folder_without_configuration_or_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError):
        plan_of_folder(tmp_path, {}, GIB)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(InvalidWeightsError):
        plan_of_folder(tmp_path, {}, GIB)
    write_model(tmp_path, {}, header_bytes({"a": entry("F32", [1], 0, 4)}, 4))
    with pytest.raises(InvalidConfigError):
        plan_of_folder(tmp_path, {}, GIB)


def test_the_table_shows_what_is_needed_and_what_fits() -> None:
    plan = _plan(adapters_max=1)
    rows = plan_rows(plan)
    assert all(len(row) == len(HEADERS) for row in rows)
    cells = {row[0]: row[1] for row in rows}
    assert cells["weights"] == str(2 * LLAMA_8B_PARAMETERS)
    assert cells["fits"] == "yes"
    shown = plan_document(plan)
    assert shown["fits"] is True
    assert shown["kv_cache_memory_bytes"] == plan.kv_cache_memory_bytes
    assert shown["reserve"]["adapter_bytes"] > 0
