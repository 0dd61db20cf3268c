"""What a model folder is for: text generation, or vectors and scores."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from core.errors import SettingsError

Runner = Literal["generate", "pooling"]

_GENERATING_ENDINGS = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
_POOLING_MARKS = frozenset({"1_Pooling", "modules.json", "config_sentence_transformers.json"})
"""Files of sentence-transformers. They win: an embedding model may keep a causal architecture."""


def runner_of(config: Mapping[str, object], file_names: Collection[str]) -> Runner:
    """Choose the runner from the model's `config.json` and the names in its folder."""
    if not _POOLING_MARKS.isdisjoint(file_names):
        return "pooling"
    architectures = config.get("architectures")
    if isinstance(architectures, list) and any(
        str(name).endswith(_GENERATING_ENDINGS) for name in architectures
    ):
        return "generate"
    return "pooling"


def runner_of_folder(folder: Path) -> Runner:
    """Choose the runner of the model in `folder`. Raises SettingsError if there is none."""
    try:
        config = msgspec.json.decode((folder / "config.json").read_bytes(), type=dict[str, object])
    except (OSError, msgspec.DecodeError) as mistake:
        raise SettingsError("The model folder has no readable config.json.") from mistake
    return runner_of(config, {path.name for path in folder.iterdir()})
