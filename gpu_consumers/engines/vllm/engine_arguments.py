"""The command line of vLLM: the options of a model version, of the operator, and our own.

A version's options are data under vLLM's own names; `registry.engine_options` has checked them.
They win over the defaults of settings. What an operator has set and a version sets, too, has two
owners, and the replica does not start. Pure, but for looking at the files of the model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from core.errors import SettingsError
from gpu_consumers.engines.model_kind import runner_of_folder
from gpu_consumers.engines.settings import EngineSettings
from registry.engine_options.engine_options import InvalidOptionError
from registry.engine_options.sampling_defaults import check_sampling

_NO_DOMAIN: Final = "media.invalid"
"""To vLLM an empty list allows every host; names under `.invalid` never resolve (RFC 6761)."""

_TOKENIZER_THREADS: Final = 4
"""Threads that render and tokenize prompts; each has a tokenizer. With vLLM's one, a call waits for
the long prompt of another, which takes seconds."""

CHAT_TEMPLATE: Final = "chat_template.jinja"
"""The file of a version with its chat template."""

_SETTINGS: Final[Mapping[str, str]] = {
    "vllm_dtype": "dtype",
    "vllm_enforce_eager": "enforce_eager",
    "vllm_max_model_len": "max_model_len",
    "vllm_max_num_seqs": "max_num_seqs",
    "vllm_tool_call_parser": "tool_call_parser",
}
"""Settings that set an option which a version may set: by setting, vLLM's name."""

_PARALLEL: Final = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
"""Options of which each needs more than one process of the engine."""

_CPU_DEFAULTS: Final[Mapping[str, Any]] = {"dtype": "bfloat16", "enforce_eager": True}
"""vLLM's own are chosen for GPUs: on a CPU float16 is slow, and compilation costs 15 s of start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelToLoad:
    """What an engine loads: a folder of verified files, and how its version says they are run."""

    folder: Path
    version: str = ""  # 64 hex digits; empty: a folder without a version
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    kv_cache_memory_bytes: int | None = None  # of the memory plan; None: vLLM measures


def vllm_arguments(
    settings: EngineSettings, model: ModelToLoad | None = None, *, on_cpu: bool = True
) -> list[str]:
    """Return vLLM's command line, its interface that is stable across releases.

    Without `model`, the folder of `settings.model_path` is loaded. Raises SettingsError.
    """
    if model is None:
        if settings.model_path is None:
            raise SettingsError("model_path is not a folder.")
        model = ModelToLoad(folder=settings.model_path)
    if not model.folder.is_dir():
        raise SettingsError("model_path is not a folder.")
    _require_one_owner(settings, model)
    runner = settings.vllm_runner
    if runner == "auto":
        runner = runner_of_folder(model.folder)
    arguments = [
        f"--model={model.folder}",
        f"--served-model-name={settings.model_name}",
        f"--runner={runner}",
        "--load-format=safetensors",  # other formats may hold code
        "--scheduling-policy=priority",
        "--allowed-media-domains",  # clients name URLs, and this host may reach private hosts
        *(settings.vllm_allowed_media_domains or _NO_DOMAIN).split(","),
        "--enable-prompt-tokens-details",
        "--disable-log-stats",
    ]
    if runner == "generate":  # vLLM refuses it for multimodal models that embed
        arguments.append(f"--renderer-num-workers={_TOKENIZER_THREADS}")
    arguments += _memory_arguments(settings, model.kv_cache_memory_bytes)
    arguments += _adapter_arguments(settings, on_cpu=on_cpu)
    if settings.vllm_sleep_mode and not on_cpu:
        arguments.append("--enable-sleep-mode")
    if (template := _chat_template(settings, model.folder)) is not None:
        arguments.append(f"--chat-template={template}")
    if model.sampling:
        sampling = msgspec.json.encode(_checked_sampling(model.sampling)).decode()
        arguments.append(f"--override-generation-config={sampling}")
    for name, value in resolved_options(settings, model.engine_options, on_cpu=on_cpu).items():
        arguments += option_arguments(name, value)
    return arguments


def resolved_options(
    settings: EngineSettings, options: Mapping[str, Any], *, on_cpu: bool
) -> dict[str, Any]:
    """Return the options that are given to vLLM: defaults, settings of the operator, the version's.

    On a GPU everything else has vLLM's own default.
    """
    chosen = dict(_CPU_DEFAULTS) if on_cpu else {}
    if on_cpu and all(options.get(name, 1) == 1 for name in _PARALLEL):
        # One process fewer, a third of the start saved, at the same speed.
        chosen["distributed_executor_backend"] = "uni"
    for setting, name in _SETTINGS.items():
        if (value := getattr(settings, setting)) is not None:
            chosen[name] = value
    chosen |= options
    if chosen.get("tool_call_parser") is not None:
        chosen.setdefault("enable_auto_tool_choice", True)
    return {name: chosen[name] for name in sorted(chosen)}


def option_arguments(name: str, value: Any) -> list[str]:
    """Return one option of vLLM as arguments; None keeps vLLM's default.

    Raises SettingsError for a list with a text that vLLM would read as another option.
    """
    flag = name.replace("_", "-")
    if value is None:
        return []
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    if isinstance(value, Mapping):
        return [f"--{flag}={msgspec.json.encode(value).decode()}"]
    if isinstance(value, list | tuple):
        if any(isinstance(one, str) and one.startswith("-") for one in value):
            raise SettingsError(f"A text of `{name}` begins with `-`.")
        return [f"--{flag}", *map(str, value)] if value else []
    return [f"--{flag}={value}"]


def _require_one_owner(settings: EngineSettings, model: ModelToLoad) -> None:
    """Raise SettingsError for what both the operator and the version set; it names both."""
    for setting, name in _SETTINGS.items():
        is_given = setting in settings.model_fields_set and getattr(settings, setting) is not None
        if is_given and name in model.engine_options:
            raise SettingsError(
                f"{setting} is set, and the version of the model sets `{name}`: remove one."
            )


def _memory_arguments(settings: EngineSettings, kv_cache_memory_bytes: int | None) -> list[str]:
    """Return the arguments for memory; with a size of the KV cache vLLM measures none."""
    arguments = []
    if kv_cache_memory_bytes is not None:
        arguments.append(f"--kv-cache-memory-bytes={kv_cache_memory_bytes}")
    if settings.vllm_gpu_memory_utilization is not None:
        arguments.append(f"--gpu-memory-utilization={settings.vllm_gpu_memory_utilization}")
    return arguments


def _adapter_arguments(settings: EngineSettings, *, on_cpu: bool) -> list[str]:
    """Return the arguments for LoRA.

    On a CPU one slot more stays empty: vLLM's kernels there apply the last slot to the sequences of
    the base model in a step that has adapters, too (vLLM issue 48421).
    """
    if not settings.adapters_max:
        return []
    slots = settings.adapters_max + int(on_cpu)
    return [
        "--enable-lora",
        f"--max-loras={slots}",
        f"--max-cpu-loras={slots}",
        f"--max-lora-rank={settings.adapter_rank_max}",
    ]


def _chat_template(settings: EngineSettings, folder: Path) -> Path | None:
    """Return the file of the chat template; None for that of the tokenizer's configuration."""
    own = folder / CHAT_TEMPLATE
    given = settings.vllm_chat_template
    if given is not None:
        if own.is_file():
            raise SettingsError(
                f"vllm_chat_template is set, and the model has a file `{CHAT_TEMPLATE}`: remove "
                "one."
            )
        if not given.is_file():
            raise SettingsError("vllm_chat_template is not a file.")
        return given
    return own if own.is_file() else None


def _checked_sampling(sampling: Mapping[str, Any]) -> dict[str, Any]:
    try:
        check_sampling(sampling)
    except InvalidOptionError as failure:
        raise SettingsError(str(failure)) from None
    return {name: sampling[name] for name in sorted(sampling)}
