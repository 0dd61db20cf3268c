"""Which folders vLLM would load a model from, by the configuration that it resolved.

A file of a version may have replaced its model or tokenizer while vLLM read it. The files are
checked before (`registry.manifests.config_check`); this holds for what that check does not know.
"""

from collections.abc import Iterator
from typing import Any, Final

from core.errors import SettingsError

_MODEL_FIELDS: Final = ("model", "model_weights", "tokenizer", "hf_config_path")
_CONFIG_FIELDS: Final = ("audio_model_id", "text_model_id")
"""Other models of a Hugging Face configuration, whose weights vLLM's loader reads."""


class ForeignSourceError(SettingsError):
    """VLLM would load something outside of the model's folder."""

    code = "model_source_refused"


def require_only_folder(config: Any, folder: str) -> None:
    """Raise ForeignSourceError unless a VllmConfig loads everything from `folder`."""
    for name, source in _sources(config):
        if source and source != folder:
            raise ForeignSourceError(
                f"vLLM would load `{name}` from outside of the model, because a file of it says so."
            )


def _sources(config: Any) -> Iterator[tuple[str, str | None]]:
    """Yield what names a source, and the source."""
    yield from _model_sources(config.model_config, "")
    if (speculation := getattr(config, "speculative_config", None)) is not None:
        # Without a draft model this is the configuration of the model itself.
        draft = getattr(speculation, "draft_model_config", None)
        if draft is not None:
            yield from _model_sources(draft, "speculative_config.")
    if (lora := getattr(config, "lora_config", None)) is not None:
        for path in (getattr(lora, "default_mm_loras", None) or {}).values():
            yield "default_mm_loras", path


def _model_sources(model: Any, prefix: str) -> Iterator[tuple[str, str | None]]:
    for name in _MODEL_FIELDS:
        yield prefix + name, getattr(model, name, None)
    hf_config = getattr(model, "hf_config", None)
    yield f"{prefix}name_or_path", getattr(hf_config, "name_or_path", None)
    for name in _CONFIG_FIELDS:
        yield prefix + name, getattr(hf_config, name, None)
