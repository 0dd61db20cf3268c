"""Resolves vLLM's configuration for each option case, and prints the outcomes: `... FOLDER`.

In a process of its own, which imports vLLM once, also for the table of its options.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from cli.demo.demo_models import ensure_tiny_llama
from core.runtime.logs import configure_logs
from gpu_consumers.engines.settings import EngineSettings
from gpu_consumers.engines.vllm.engine_arguments import ModelToLoad
from gpu_consumers.engines.vllm.vllm_engine import vllm_environment
from tests.integration.engines.option_cases import OPTION_CASES, Verdict


def run(root: Path) -> dict[str, Any]:
    folders = [ensure_tiny_llama(root / name) for name in ("one", "two")]
    values = {"KIND": "vllm", "MODEL_NAME": "m", "MODEL_PATH": str(folders[0])}
    settings = EngineSettings.from_env({f"MILLRACE_ENGINE_{k}": v for k, v in values.items()})
    os.environ.update(vllm_environment(settings))
    from gpu_consumers.engines.vllm.engine_config import EngineOptionsRefusedError
    from gpu_consumers.engines.vllm.engine_config import resolve_engine_config as resolve
    from gpu_consumers.engines.vllm.engine_hash import engine_hash, resolved_options
    from gpu_consumers.engines.vllm.option_table import option_table

    def outcome(options: Mapping[str, Any], folder: Path = folders[0], **model: Any) -> list[str]:
        loaded = ModelToLoad(folder=folder, engine_options=options, **model)
        try:
            return ["accepted", engine_hash(resolve(settings, loaded))]
        except EngineOptionsRefusedError as refusal:
            return ["refused", str(refusal)]

    plain = resolve(settings, ModelToLoad(folder=folders[0]))
    return {
        "table": option_table().decode(),
        "cases": {
            case.name: outcome(case.options)
            for case in OPTION_CASES
            if case.verdict is not Verdict.PUSH
        },
        "same": [outcome({}), outcome({}), outcome({}, folders[1])],
        "sampling": outcome({}, sampling={"temperature": 0.25, "top_k": 7}),
        "resolved": msgspec.json.encode(resolved_options(plain)).decode(),
        "sampling_defaults": resolve(
            settings, ModelToLoad(folder=folders[0], sampling={"temperature": 0.25, "top_k": 7})
        ).config.model_config.get_diff_sampling_param(),
        "load_format": str(plain.config.load_config.load_format),
        "foreign": _foreign(settings, root / "three"),
        "injected": _injected(settings, folders[0]),
        "template": _template(settings, folders[1]),
        "sequences": plain.config.scheduler_config.max_num_seqs,
    }


def _foreign(settings: EngineSettings, folder: Path) -> str:
    """Return the refusal of a configuration that replaces the model by its verifier."""
    from gpu_consumers.engines.vllm.engine_config import resolve_engine_config
    from gpu_consumers.engines.vllm.loaded_sources import ForeignSourceError

    other = ensure_tiny_llama(folder)
    model = ensure_tiny_llama(folder.with_name("draft"))
    config = msgspec.json.decode((model / "config.json").read_bytes())
    proposal = {"proposal_type": "greedy", "speculative_tokens": 3}
    speculators = {
        "speculators_model_type": "eagle3",
        "transformer_layer_config": config,
        "draft_vocab_size": config["vocab_size"],
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": str(other), "architectures": config["architectures"]},
        },
    }
    (model / "config.json").write_bytes(msgspec.json.encode(speculators))
    try:
        resolve_engine_config(settings, ModelToLoad(folder=model))
    except ForeignSourceError as refusal:
        return str(refusal)
    return ""


def _injected(settings: EngineSettings, folder: Path) -> str:
    """Return the refusal of an option in a list, past the checks of texts."""
    from gpu_consumers.engines.vllm import engine_arguments, engine_config

    def unchecked(name: str, value: Any) -> list[str]:
        return [f"--{name}", *value] if isinstance(value, list) else checked(name, value)

    checked = engine_arguments.option_arguments
    engine_arguments.option_arguments = unchecked
    modules = ["q_proj", "--trust-remote-code", "--worker-cls=evil.Worker"]
    model = ModelToLoad(folder=folder, engine_options={"lora_target_modules": modules})
    try:
        engine_config.resolve_engine_config(settings, model)
    except engine_config.EngineOptionsRefusedError as refusal:
        return str(refusal)
    finally:
        engine_arguments.option_arguments = checked
    return ""


def _template(settings: EngineSettings, folder: Path) -> str:
    from gpu_consumers.engines.vllm.engine_config import resolve_engine_config as resolve

    (folder / "chat_template.jinja").write_text("{{ messages }}")
    template = resolve(settings, ModelToLoad(folder=folder)).parsed.chat_template
    return Path(template).name


if __name__ == "__main__":
    configure_logs("gpu-consumer")
    sys.stdout.buffer.write(msgspec.json.encode(run(Path(sys.argv[1]))))
