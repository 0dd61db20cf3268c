"""Goal: a version whose configurations name what is outside of it is neither pushed nor loaded."""

import json
from pathlib import Path
from typing import Any

import pytest

from registry.manifests.config_check import (
    CONFIG_BYTES_MAX,
    check_configs,
    check_folder_configs,
    config_refusal,
)
from registry.manifests.manifest import InvalidManifestError
from registry.publishing.folder_manifest import describe_folder

PATHS = ["config.json", "tokenizer.json", "vocab.txt", "merges.txt", "encoder/config.json"]


def refusal(config: Any) -> str | None:
    return config_refusal(json.dumps(config).encode(), PATHS)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"speculators_config": {"verifier": {"name_or_path": "org/big"}}}, "speculators_config"),
        ({"speculators_config": {"verifier": {"name_or_path": ""}}}, "speculators_config"),
        ({"audio_model_id": "openai/whisper-large"}, "audio_model_id"),
        ({"thinker": {"text_model_id": "/models/other"}}, "text_model_id"),
        ({"quantization_config": {"adapter_name_or_path": "x"}}, "adapter_name_or_path"),
        ({"use_pretrained_backbone": True}, "use_pretrained_backbone"),
        ({"auto_map": {"AutoModel": "org/name--modeling.Model"}}, "auto_map"),
        ({"auto_map": {"AutoTokenizer": ["org/name--tok.Slow", None]}}, "auto_map"),
        ({"auto_map": ["a.B", "org/name--tok.Fast"]}, "auto_map"),
        ({"vocab": "/etc/passwd"}, "vocab"),
        ({"vocab": "other.txt"}, "vocab"),
        ({"merges": "../merges.txt"}, "merges"),
        ({"vocab_file": "/etc/passwd"}, "vocab_file"),
        ({"tokenizer_file": "sub/../../tokenizer.json"}, "tokenizer_file"),
        ({"fast_tokenizer_files": ["tokenizer.json", "tokenizer.4.json"]}, "fast_tokenizer_files"),
        ({"quantization_config": {"quantization_param_path": "s.json"}}, "quantization_param_path"),
        ({"mecab_kwargs": {"mecab_option": "-r /tmp/rc"}}, "mecab_option"),
        ({"sudachi_kwargs": {"sudachi_config_path": "/x.json"}}, "sudachi_config_path"),
        ({"unknown": {"deep": ["/data/x"]}}, "deep"),
        ({"unknown": "~/x"}, "unknown"),
        ([{"path": "../other"}], "path"),
    ],
)
def test_what_lies_outside_is_refused_by_its_key(config: Any, named: str) -> None:
    assert f"`{named}`" in (refusal(config) or "")


@pytest.mark.parametrize(
    "config",
    [
        {},
        [],
        {"_name_or_path": "/data/author/model", "text_config": {"_name_or_path": "org/x"}},
        {
            "name_or_path": "/data/author",
            "special_tokens_map_file": "/data/special_tokens_map.json",
        },
        {"base_model_name_or_path": "/data/author/base"},
        {"speculators_config": None, "audio_model_id": None, "use_pretrained_backbone": False},
        {"speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": None}}},
        {"auto_map": {"AutoConfig": "configuration_x.Config", "AutoTokenizer": ["a.B", None]}},
        {"vocab_file": "vocab.txt", "merges_file": None, "tokenizer_file": "tokenizer.json"},
        {"vocab": {"/etc": 1, "..": 2}, "merges": [["/e", "tc"]]},
        {"encoder_dir": "encoder"},
        {"unk_token": "/..", "bos_token": {"content": "/s"}, "additional_special_tokens": ["/a"]},
        {"added_tokens_decoder": {"1": {"content": "/etc/x"}}, "chat_template": "/think{{ x }}"},
        {"id2label": {"0": "/finance/../x"}, "prompts": {"query": "/x"}},
        {"quantization_config": {"ignore": ["re:.*lm_head"], "targets": ["Linear"]}},
        [{"idx": 2, "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}],
        {"architectures": ["LlamaForCausalLM"], "rope_theta": 1e4, "license": "https://x.org/y"},
    ],
)
def test_ordinary_configurations_are_accepted(config: Any) -> None:
    assert refusal(config) is None


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not valid JSON"),
        (b"{'a': 1}", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b" " * (CONFIG_BYTES_MAX + 1), "more than"),
    ],
)
def test_a_configuration_that_cannot_be_read_is_refused(data: bytes, reason: str) -> None:
    assert reason in (config_refusal(data, PATHS) or "")


def test_every_configuration_is_read_and_no_vocabulary() -> None:
    read: list[str] = []

    def content(path: str) -> bytes:
        read.append(path)
        return b"{}"

    configs = [
        "config.json",
        "encoder/preprocessor_config.json",
        "special_tokens_map.json",
        "modules.json",
        "hf_quant_config.json",
    ]
    check_configs([*configs, "tokenizer.json", "vocab.json", "model.safetensors", "a.txt"], content)
    assert read == sorted(configs)


@pytest.mark.parametrize(
    "name", ["tokenizer_config.json", "sub/special_tokens_map.json", "processor_config.json"]
)
def test_a_folder_is_refused_at_push(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text('{"vocab_file": "/etc/passwd"}')
    with pytest.raises(InvalidManifestError, match=f"'{name}'.*`vocab_file`"):
        describe_folder(tmp_path)
    path.write_text('{"vocab_file": "vocab.txt"}')
    with pytest.raises(InvalidManifestError, match="not in it"):
        check_folder_configs(tmp_path, [name])
    (tmp_path / "vocab.txt").write_text("a")
    assert len(describe_folder(tmp_path).files) == 2
