"""Goal: an adapter that vLLM would refuse or misread is refused when it is pushed."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from registry.adapters.adapter_check import (
    CONFIG_NAME,
    HEADER_BYTES_MAX,
    WEIGHTS_NAME,
    InvalidAdapterError,
    TensorInfo,
    check_adapter,
    parse_header,
)
from tests.support.lora_adapters import write_adapter

BASE = "b" * 64
AT = "base_model.model.model.layers.0.self_attn.q_proj"
TENSORS = {
    f"{AT}.lora_A.weight": TensorInfo("F16", (8, 128)),
    f"{AT}.lora_B.weight": TensorInfo("F16", (64, 8)),
}
BASE_TENSORS = {"model.layers.0.self_attn.q_proj.weight": TensorInfo("BF16", (64, 128))}
CONFIG = {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], "peft_type": "LORA"}


def check(config: dict[str, Any], tensors: dict[str, TensorInfo], base: str | None = BASE) -> None:
    encoded = msgspec.json.encode(CONFIG | config)
    check_adapter(encoded, tensors, base=base, base_tensors=BASE_TENSORS, rank_max=16)


def test_adapter_as_peft_writes_it_is_accepted(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapter", 1)
    tensors = parse_header((folder / WEIGHTS_NAME).read_bytes())
    config = (folder / CONFIG_NAME).read_bytes()
    found = check_adapter(config, tensors, base=BASE, base_tensors=None, rank_max=8)
    assert (found.rank_max, len(tensors)) == (8, 8)


def test_base_that_is_stored_under_another_prefix_is_compared_from_its_layers_on() -> None:
    at = AT.replace(".model.layers", ".model.language_model.layers")
    tensors = {name.replace(AT, at): info for name, info in TENSORS.items()}
    check({}, tensors)
    unknown = {name.replace("q_proj", "x_proj"): info for name, info in tensors.items()}
    with pytest.raises(InvalidAdapterError, match="has no module"):
        check({}, unknown)


def test_quantized_base_is_compared_by_its_modules() -> None:
    packed = {"model.layers.0.self_attn.q_proj.qweight": TensorInfo("I32", (16, 64))}
    config = msgspec.json.encode(CONFIG)
    check_adapter(config, TENSORS, base=BASE, base_tensors=packed, rank_max=16)


@pytest.mark.parametrize(
    ("config", "mistake"),
    [
        ({"r": 32}, "rank 32; replicas take 16"),
        ({"rank_pattern": {"q_proj": 64}}, "rank 64"),
        ({"r": 0}, "at least 1"),
        ({"r": "8"}, "not valid"),
        ({"peft_type": "IA3"}, "'IA3'"),
        ({"use_dora": True}, "use_dora"),
        ({"lora_bias": True}, "lora_bias"),
        ({"bias": "all"}, "biases"),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens"),
        ({"layer_replication": [[0, 1]]}, "layer_replication"),
        ({"use_qalora": True}, "use_qalora"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"init_lora_weights": "pissa"}, "'pissa'"),
        ({"modules_to_save": ["lm_head"]}, "lm_head"),
        ({"target_modules": []}, "targets no modules"),
    ],
)
def test_configuration_that_vllm_does_not_serve_is_refused(
    config: dict[str, Any], mistake: str
) -> None:
    with pytest.raises(InvalidAdapterError, match=mistake):
        check(config, TENSORS)


@pytest.mark.parametrize(
    ("tensors", "mistake"),
    [
        ({}, "no LoRA tensors"),
        ({f"{AT}.lora_A.weight": TensorInfo("I8", (8, 128))}, "I8"),
        ({f"{AT}.lora_A.weight": TensorInfo("F16", (8, 128))}, "is missing"),
        (TENSORS | {f"{AT}.lora_magnitude_vector": TensorInfo("F16", (64,))}, "magnitude"),
        (TENSORS | {f"{AT}.lora_B.weight": TensorInfo("F16", (64, 4))}, "fit each other"),
        (TENSORS | {f"{AT}.lora_B.weight": TensorInfo("F16", (32, 8))}, "fit those of the base"),
        (
            {
                f"{AT}.lora_A.weight": TensorInfo("F16", (16, 128)),
                f"{AT}.lora_B.weight": TensorInfo("F16", (64, 16)),
            },
            "above that of the configuration",
        ),
        (
            {name.replace("q_proj", "w_proj"): info for name, info in TENSORS.items()},
            "has no module 'model.layers.0.self_attn.w_proj'",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused(tensors: dict[str, TensorInfo], mistake: str) -> None:
    with pytest.raises(InvalidAdapterError, match=mistake):
        check({}, tensors)


def test_adapter_without_base_is_refused() -> None:
    with pytest.raises(InvalidAdapterError, match="no version of a base model"):
        check({}, TENSORS, base=None)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x02",
        (HEADER_BYTES_MAX + 1).to_bytes(8, "little"),
        (10).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (12).to_bytes(8, "little") + b'{"a":{"b":1}',
    ],
)
def test_file_that_is_not_safetensors_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidAdapterError):
        parse_header(data)
