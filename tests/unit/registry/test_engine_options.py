"""Goal: a version may carry vLLM's options, and none that loads code, opens files or is ours."""

from typing import Any

import pytest

from registry.engine_options.denied_options import DENIED, MAPPING_KEYS
from registry.engine_options.engine_options import (
    InvalidOptionError,
    check_options,
    option_table,
)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "data_parallel_size": 4},
        {"enable_expert_parallel": True, "enable_eplb": True},
        {"quantization": "awq", "kv_cache_dtype": "fp8", "dtype": "bfloat16"},
        {"quantization": None},
        {"max_num_batched_tokens": 8192, "enable_chunked_prefill": True},
        {"enable_prefix_caching": False, "max_num_seqs": 256, "max_model_len": 4096},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4}},
        {"compilation_config": {"cudagraph_capture_sizes": [1, 2, 4]}},
        {"reasoning_parser": "deepseek_r1", "tool_call_parser": "hermes"},
        {"optimization_level": 0},
        {"cpu_offload_gb": 1.5, "cudagraph_capture_sizes": [1, 8]},
    ],
)
def test_options_of_vllm_are_accepted(options: dict[str, Any]) -> None:
    check_options(options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trust_remote_code": True}, "loads code"),
        ({"worker_cls": "x.Y"}, "loads code"),
        ({"load_format": "pt"}, "files"),
        ({"hf_token": "x"}, "network"),
        ({"enable_log_requests": True}, "logs"),
        ({"seed": 1}, "Millrace sets it"),
        ({"gpu_memory_utilization": 0.5}, "machine"),
        ({"port": 80}, "HTTP server"),
        ({"tensor_parallel": 2}, "Did you mean `tensor_parallel_size`"),
        ({"": 2}, "no option ''"),
        ({"x" * 10_000: 2}, "no option"),
        ({"tensor_parallel_size": "2"}, "whole number"),
        ({"tensor_parallel_size": True}, "whole number"),
        ({"tensor_parallel_size": None}, "whole number"),
        ({"tensor_parallel_size": 2.0}, "whole number"),
        ({"tensor_parallel_size": 2**70}, "whole number"),
        ({"enable_chunked_prefill": 1}, "true or false"),
        ({"cpu_offload_gb": float("nan")}, "a number"),
        ({"cpu_offload_gb": float("inf")}, "a number"),
        ({"dtype": "float8"}, "one of"),
        ({"optimization_level": "3"}, "whole number"),
        ({"optimization_level": 4}, "one of"),
        ({"quantization": "../x"}, "without `/`"),
        ({"reasoning_parser": "a\nb"}, "printable"),
        ({"reasoning_parser": "--port=1"}, "first `-`"),
        ({"lora_target_modules": ["q_proj", "--trust-remote-code"]}, "first `-`"),
        ({"lora_target_modules": ["q_proj", "-tp", "2"]}, "first `-`"),
        ({"speculative_config": {"method": "--trust-remote-code"}}, "must be a text"),
        ({"pooler_config": {"pooling_type": ["-x"]}}, "must be a text"),
        ({"reasoning_parser": "x" * 300}, "256"),
        ({"cudagraph_capture_sizes": 4}, "a list"),
        ({"cudagraph_capture_sizes": [1] * 300}, "at most 256"),
        ({"cudagraph_capture_sizes": ["1"]}, "whole number"),
        ({"speculative_config": "ngram"}, "an object"),
        ({"speculative_config": {"model": "org/draft"}}, "may not set 'model'"),
        ({"speculative_config": {"method": {"a": 1}}}, "must be a text"),
        ({"speculative_config": {"method": "a/b"}}, "must be a text"),
        ({"compilation_config": {"inductor_passes": {}}}, "may not set"),
        ({"quantization_config": {"x": 1}}, "only: none"),
    ],
)
def test_other_options_are_refused_with_their_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        check_options(options)


def test_every_denied_option_and_mapping_exists() -> None:
    """An option that vLLM renamed would be allowed under its new name."""
    options = option_table().options
    assert not DENIED.keys() - options.keys()
    assert all(options[name].type == "object" for name in MAPPING_KEYS)
    assert not DENIED.keys() & MAPPING_KEYS.keys()


def test_an_allowed_option_names_no_file_address_or_code() -> None:
    """A new option of this kind has to be classified when vLLM is upgraded."""
    parts = {"path", "dir", "file", "host", "port", "url", "addr", "address", "plugin", "cls"}
    allowed = option_table().options.keys() - DENIED.keys()
    found = {name for name in allowed if parts & set(name.split("_"))}
    assert found == {"max_lora_cls_labels"}
