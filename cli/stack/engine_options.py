"""Engine settings on the command line: `--engine-option NAME=VALUE`."""

from collections.abc import Iterable
from pathlib import Path

from core.errors import SettingsError
from gpu_consumers.engines.settings import EngineSettings

_FIXED = frozenset({"kind", "model_name", "model_path"})
"""Fields that have their own options."""

_PATHS = frozenset({"vllm_chat_template"})  # the shell does not expand ~ after =


def engine_options(texts: Iterable[str]) -> dict[str, str]:
    """Return the environment variables for the options. Raises SettingsError."""
    fields = [name for name in EngineSettings.model_fields if name not in _FIXED]
    variables: dict[str, str] = {}
    for text in texts:
        option, equals, value = text.partition("=")
        name = option.strip().lower()
        if not equals or name not in fields:
            raise SettingsError(
                f"--engine-option {option}: give NAME=VALUE, NAME one of {', '.join(fields)}"
            )
        path = str(Path(value).expanduser().absolute()) if name in _PATHS else value
        variables[f"{EngineSettings.env_prefix}{name.upper()}"] = path
    return variables
