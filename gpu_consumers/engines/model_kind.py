"""Which tasks a model folder supports: text generation, embeddings, scores or classes."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from core.errors import SettingsError

Runner = Literal["generate", "pooling"]

_GENERATING_ENDINGS = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
_CLASSIFYING_ENDING = "ForSequenceClassification"
_POOLING_FILES = frozenset({"1_Pooling", "modules.json", "config_sentence_transformers.json"})
"""Files of sentence-transformers. They take precedence over a causal architecture."""


def runner_of(config: Mapping[str, object], file_names: Collection[str]) -> Runner:
    """Choose the runner from the model's `config.json` and the names in its folder."""
    if not _POOLING_FILES.isdisjoint(file_names):
        return "pooling"
    architectures = config.get("architectures")
    if isinstance(architectures, list) and any(
        str(name).endswith(_GENERATING_ENDINGS) for name in architectures
    ):
        return "generate"
    return "pooling"


def endpoints_of(config: Mapping[str, object], file_names: Collection[str]) -> tuple[str, ...]:
    """Return the endpoints that vLLM serves for a model.

    A classifier with a single class scores pairs. vLLM also scores pairs by their embeddings.
    """
    if runner_of(config, file_names) == "generate":
        return ("/v1/chat/completions", "/v1/completions")
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not any(
        str(name).endswith(_CLASSIFYING_ENDING) for name in architectures
    ):
        return ("/v1/embeddings", "/v1/score", "/v1/rerank")
    labels = config.get("id2label")
    single = isinstance(labels, Mapping) and len(labels) == 1
    return ("/v1/classify", "/v1/score", "/v1/rerank") if single else ("/v1/classify",)


def endpoints_of_folder(folder: Path) -> tuple[str, ...]:
    """Return the endpoints of the model in `folder`. Raises SettingsError if unreadable."""
    return endpoints_of(*_read(folder))


def runner_of_folder(folder: Path) -> Runner:
    """Choose the runner of the model in `folder`. Raises SettingsError if unreadable."""
    return runner_of(*_read(folder))


def _read(folder: Path) -> tuple[dict[str, object], set[str]]:
    try:
        config = msgspec.json.decode((folder / "config.json").read_bytes(), type=dict[str, object])
    except (OSError, msgspec.DecodeError) as mistake:
        raise SettingsError("The model folder has no readable config.json.") from mistake
    return config, {path.name for path in folder.iterdir()}
