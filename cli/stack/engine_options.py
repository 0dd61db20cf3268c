"""Parses `--engine-option NAME=VALUE` into the variables of engine settings."""

from collections.abc import Iterable
from pathlib import Path

from core.errors import SettingsError
from gpu_consumers.engines.settings import EngineSettings

_FIXED = frozenset({"kind", "model_name", "model_path"})
"""Fields with options of their own."""

_PATHS = frozenset({"vllm_chat_template"})  # the shell does not expand a ~ after =


def engine_options(texts: Iterable[str]) -> dict[str, str]:
    """Return the variables of `texts`. Raises SettingsError for an unknown name."""
    fields = [name for name in EngineSettings.model_fields if name not in _FIXED]
    variables: dict[str, str] = {}
    for text in texts:
        given, equals, value = text.partition("=")
        name = given.strip().lower()
        if not equals or name not in fields:
            raise SettingsError(
                f"--engine-option {given}: give NAME=VALUE, NAME one of {', '.join(fields)}"
            )
        path = str(Path(value).expanduser().absolute()) if name in _PATHS else value
        variables[f"{EngineSettings.env_prefix}{name.upper()}"] = path
    return variables
