"""Goal: vLLM gets the options of a version, and two owners of one option are an error."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from core.errors import SettingsError
from gpu_consumers.engines.settings import EngineSettings
from gpu_consumers.engines.vllm.engine_arguments import (
    ModelToLoad,
    option_arguments,
    resolved_options,
    vllm_arguments,
)
from gpu_consumers.engines.vllm.loaded_sources import ForeignSourceError, require_only_folder
from gpu_consumers.engines.vllm.unnamed_options import unnamed_options
from gpu_consumers.engines.vllm.vllm_engine import VllmEngine, set_environment, vllm_environment


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    return tmp_path


def settings(folder: Path, **env: str) -> EngineSettings:
    values = {"KIND": "vllm", "MODEL_NAME": "m", "MODEL_PATH": str(folder)} | env
    return EngineSettings.from_env({f"MILLRACE_ENGINE_{name}": values[name] for name in values})


def arguments(folder: Path, *, on_cpu: bool = True, **model: Any) -> list[str]:
    env = model.pop("env", {})
    return vllm_arguments(
        settings(folder, **env), ModelToLoad(folder=folder, **model), on_cpu=on_cpu
    )


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("max_num_seqs", 8, ["--max-num-seqs=8"]),
        ("enable_prefix_caching", True, ["--enable-prefix-caching"]),
        ("enable_prefix_caching", False, ["--no-enable-prefix-caching"]),
        ("dtype", "float32", ["--dtype=float32"]),
        ("max_model_len", None, []),
        ("cudagraph_capture_sizes", [1, 8], ["--cudagraph-capture-sizes", "1", "8"]),
        ("speculative_config", {"method": "ngram"}, ['--speculative-config={"method":"ngram"}']),
        ("tool_call_parser", "--evil", ["--tool-call-parser=--evil"]),
    ],
)
def test_option_as_arguments(name: str, value: Any, expected: list[str]) -> None:
    assert option_arguments(name, value) == expected


def test_a_list_holds_no_option() -> None:
    with pytest.raises(SettingsError, match="`lora_target_modules` begins with `-`"):
        option_arguments("lora_target_modules", ["q_proj", "--trust-remote-code"])
    assert option_arguments("sizes", [-1]) == ["--sizes", "-1"]


def test_options_that_a_version_does_not_name_are_found() -> None:
    plain = {"dtype": "auto", "trust_remote_code": False, "port": 1}
    parsed = plain | {"dtype": "float32", "trust_remote_code": True}
    assert unnamed_options(parsed, plain, named={"dtype"}) == ["trust_remote_code"]
    assert unnamed_options(parsed, plain, named=["dtype", "trust_remote_code"]) == []
    assert unnamed_options({"a": 1}, {}, named=()) == ["a"]


def test_defaults_on_a_gpu_are_those_of_vllm(folder: Path) -> None:
    on_gpu = arguments(folder, on_cpu=False)
    names = {argument.partition("=")[0] for argument in on_gpu}
    for name in ("dtype", "max-num-seqs", "enforce-eager", "gpu-memory-utilization", "max-loras"):
        assert f"--{name}" not in names
    assert resolved_options(settings(folder), {}, on_cpu=False) == {}
    on_cpu = arguments(folder)
    assert "--dtype=bfloat16" in on_cpu
    assert "--enforce-eager" in on_cpu
    assert "--distributed-executor-backend=uni" in on_cpu
    for listed in (on_cpu, on_gpu):
        assert "--load-format=safetensors" in listed


def test_options_of_a_version_win_over_defaults(folder: Path) -> None:
    options = {"dtype": "float32", "enforce_eager": False, "tensor_parallel_size": 2}
    found = arguments(folder, engine_options=options)
    assert "--dtype=float32" in found
    assert "--no-enforce-eager" in found
    assert not any("executor" in argument for argument in found)  # it has several processes


@pytest.mark.parametrize(
    ("setting", "value", "option", "own"),
    [
        ("VLLM_DTYPE", "float32", "dtype", "bfloat16"),
        ("VLLM_MAX_NUM_SEQS", "8", "max_num_seqs", 16),
        ("VLLM_MAX_MODEL_LEN", "512", "max_model_len", 512),
        ("VLLM_ENFORCE_EAGER", "true", "enforce_eager", True),
        ("VLLM_TOOL_CALL_PARSER", "hermes", "tool_call_parser", "hermes"),
    ],
)
def test_setting_and_version_that_set_the_same_are_an_error(
    folder: Path, setting: str, value: str, option: str, own: Any
) -> None:
    env = {setting: value}
    arguments(folder, env=env)
    with pytest.raises(SettingsError, match=f"{setting.lower()} is set.*`{option}`"):
        arguments(folder, env=env, engine_options={option: own})


def test_template_is_the_file_of_the_version(folder: Path) -> None:
    assert not any(one.startswith("--chat-template=") for one in arguments(folder))
    template = folder / "chat_template.jinja"
    template.write_text("{{ messages }}")
    assert f"--chat-template={template}" in arguments(folder)
    other = folder / "other.jinja"
    other.write_text("{{ messages }}")
    with pytest.raises(SettingsError, match="vllm_chat_template"):
        arguments(folder, env={"VLLM_CHAT_TEMPLATE": str(other)})


def test_sampling_defaults_use_the_mechanism_of_vllm(folder: Path) -> None:
    found = arguments(folder, sampling={"top_p": 0.5, "temperature": 0})
    given = [one for one in found if one.startswith("--override-generation-config=")]
    assert json.loads(given[0].partition("=")[2]) == {"temperature": 0, "top_p": 0.5}
    with pytest.raises(SettingsError, match="'max_tokens'"):  # vLLM would ignore it
        arguments(folder, sampling={"max_tokens": 5})


def test_tool_parser_of_a_version_enables_tools(folder: Path) -> None:
    found = arguments(folder, engine_options={"tool_call_parser": "hermes"})
    assert "--enable-auto-tool-choice" in found


def test_memory_plan_sizes_the_cache(folder: Path) -> None:
    assert "--kv-cache-memory-bytes=1000" in arguments(folder, kv_cache_memory_bytes=1000)
    # The variable would win over the argument.
    assert "VLLM_CPU_KVCACHE_SPACE" not in vllm_environment(settings(folder), has_memory_plan=True)


@pytest.mark.parametrize(("version", "expected"), [("7" * 64, "1"), ("", "0")])
def test_only_a_folder_without_a_version_may_go_online(
    version: str, expected: str, folder: Path
) -> None:
    environment = {"HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "0", "VLLM_LOGGING_LEVEL": "x"}
    set_environment(environment, settings(folder), ModelToLoad(folder=folder, version=version))
    assert environment["HF_HUB_OFFLINE"] == environment["TRANSFORMERS_OFFLINE"] == expected
    assert environment["VLLM_LOGGING_LEVEL"] == "x"  # an operator's own value
    assert environment["VLLM_NO_USAGE_STATS"] == "1"


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"model": "/other"}, "model"),
        ({"tokenizer": "org/name"}, "tokenizer"),
        ({"hf_config_path": "/other"}, "hf_config_path"),
        ({"model_weights": "s3://x"}, "model_weights"),
        ({"hf_config": SimpleNamespace(audio_model_id="org/name")}, "audio_model_id"),
        ({"hf_config": SimpleNamespace(text_model_id="org/name")}, "text_model_id"),
        ({"hf_config": SimpleNamespace(name_or_path="/other")}, "name_or_path"),
    ],
)
def test_everything_is_loaded_from_the_folder(config: dict[str, Any], named: str) -> None:
    own: dict[str, Any] = {
        "model": "/m",
        "tokenizer": "/m",
        "hf_config_path": None,
        "model_weights": "",
    }
    own["hf_config"] = SimpleNamespace(name_or_path="/m", audio_model_id=None)
    good, bad = SimpleNamespace(**own), SimpleNamespace(**own | config)
    require_only_folder(vllm_config(good), "/m")
    with pytest.raises(ForeignSourceError, match=f"`{named}`"):
        require_only_folder(vllm_config(bad), "/m")
    with pytest.raises(ForeignSourceError, match=f"`speculative_config.{named}`"):
        require_only_folder(vllm_config(good, draft=bad), "/m")
    with pytest.raises(ForeignSourceError, match="`default_mm_loras`"):
        require_only_folder(vllm_config(good, loras={"image": "/other"}), "/m")


def vllm_config(
    model: SimpleNamespace,
    draft: SimpleNamespace | None = None,
    loras: dict[str, str] | None = None,
) -> SimpleNamespace:
    """Return the parts of a VllmConfig that name sources."""
    return SimpleNamespace(
        model_config=model,
        speculative_config=None if draft is None else SimpleNamespace(draft_model_config=draft),
        lora_config=SimpleNamespace(default_mm_loras=loras),
    )


def test_adapters_have_a_spare_slot_on_a_cpu_alone(folder: Path) -> None:
    env = {"ADAPTERS_MAX": "4", "ADAPTER_RANK_MAX": "32"}
    for on_cpu, slots in ((True, 5), (False, 4)):
        found = arguments(folder, on_cpu=on_cpu, env=env)
        assert "--enable-lora" in found
        assert "--max-lora-rank=32" in found
        assert {f"--max-loras={slots}", f"--max-cpu-loras={slots}"} <= set(found)


@pytest.mark.parametrize(("name", "value"), [("ADAPTER_RANK_MAX", "7"), ("ADAPTERS_MAX", "-1")])
def test_adapter_settings_have_limits(folder: Path, name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        settings(folder, **{name: value})


def test_slots_before_the_start_are_an_estimate(folder: Path) -> None:
    engine = VllmEngine(settings(folder))
    assert (engine.concurrency, engine.headroom) == (160, 13)
    assert (engine.engine_hash, [*engine.adapters]) == ("", [])
