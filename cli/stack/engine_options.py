"""Settings of engines as options of a command line: `NAME=VALUE` for each field of theirs."""

from collections.abc import Iterable
from pathlib import Path

from core.errors import SettingsError
from gpu_consumers.engines.settings import EngineSettings

_FIXED = frozenset({"kind", "model_name", "model_path"})
"""Fields that other options set."""

_PATHS = frozenset({"vllm_chat_template"})  # the shell leaves a ~ behind = as it is


def engine_options(texts: Iterable[str]) -> dict[str, str]:
    """Return the variables that `texts` stand for. Raises SettingsError for an unknown name."""
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
