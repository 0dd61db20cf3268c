"""vLLM's own check of the options of a model version, before any weight is loaded.

What depends on several options or on the model is known to `create_engine_config()` alone. It takes
up to 2 s, and its refusal names the option, so that a version that cannot start costs no load.
"""

import argparse
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Final, NoReturn, cast

from pydantic import ValidationError
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.platforms import current_platform
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser

from core.errors import SettingsError
from gpu_consumers.engines.settings import EngineSettings
from gpu_consumers.engines.vllm.engine_arguments import (
    ModelToLoad,
    resolved_options,
    vllm_arguments,
)
from gpu_consumers.engines.vllm.loaded_sources import require_only_folder
from gpu_consumers.engines.vllm.unnamed_options import unnamed_options

_MESSAGE_CHARS_MAX: Final = 1_000
_TRIALS_MAX: Final = 8
"""Configurations that are created to find the refused option, each without one option."""

_INNER_NAMES: Final[Mapping[str, str]] = {"kv_cache_dtype": "cache_dtype"}
"""Options that vLLM's configuration, and so its refusals, calls otherwise."""


class EngineOptionsRefusedError(SettingsError):
    """vLLM refuses the options of the model."""

    code = "engine_options_refused"


class _RefusedArgumentsError(Exception):
    """vLLM's command line refuses its arguments."""


class EngineConfig:
    """A configuration that vLLM accepts; `parsed` is for its serving layer."""

    def __init__(self, arguments: list[str]) -> None:
        """Resolve all options. Raises what vLLM raises for options that it refuses."""
        self.parsed = _parser().parse_args(arguments)
        _require_parser("tool_call_parser", self.parsed.tool_call_parser, _tool_parsers)
        _require_parser("reasoning_parser", self.parsed.reasoning_parser, _reasoning_parsers)
        self.args = AsyncEngineArgs.from_cli_args(self.parsed)
        # The defaults of vLLM's own server; without a context they would suit no GPU.
        self.config: VllmConfig = self.args.create_engine_config(UsageContext.OPENAI_API_SERVER)


def resolve_engine_config(settings: EngineSettings, model: ModelToLoad) -> EngineConfig:
    """Return the configuration of vLLM for a model on this machine.

    Raises EngineOptionsRefusedError, which names the refused option if it is one of the version's,
    ForeignSourceError and SettingsError.
    """
    on_cpu = current_platform.is_cpu()
    if on_cpu:
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # or uni is overridden

    def arguments_of(options: Mapping[str, Any]) -> list[str]:
        return vllm_arguments(settings, replace(model, engine_options=options), on_cpu=on_cpu)

    options = model.engine_options
    _require_named_alone(settings, options, arguments_of, on_cpu=on_cpu)
    failure = _try(arguments_of(options))
    if isinstance(failure, EngineConfig):
        require_only_folder(failure.config, str(model.folder))
        return failure
    message = _message_of(failure)
    names = named_options(message, options) or _blamed_options(arguments_of, options)
    subject = ", ".join(f"`{name}`" for name in names)
    what = f"{subject} of the model's version" if names else "its configuration"
    raise EngineOptionsRefusedError(f"vLLM refuses {what}: {message}") from failure


def named_options(message: str, names: Collection[str]) -> list[str]:
    """Return those of the option names that a message of vLLM contains, also with hyphens."""
    words = set(re.findall(r"\w+", message.replace("-", "_")))
    return [name for name in names if name in words or _INNER_NAMES.get(name) in words]


def _require_named_alone(
    settings: EngineSettings,
    options: Mapping[str, Any],
    arguments_of: Callable[[Mapping[str, Any]], list[str]],
    *,
    on_cpu: bool,
) -> None:
    """Raise EngineOptionsRefusedError if options that the version does not name change, too."""
    parser = _parser()
    try:
        parsed = vars(parser.parse_args(arguments_of(options)))
        plain = vars(parser.parse_args(arguments_of({})))
    except (_RefusedArgumentsError, ValueError):
        return  # the configuration fails, too, and finds the option
    given = resolved_options(settings, options, on_cpu=on_cpu)
    defaults = resolved_options(settings, {}, on_cpu=on_cpu)
    for name in defaults.keys() - given.keys():
        plain[name] = parser.get_default(name)
    if changed := unnamed_options(parsed, plain, named=given):
        names = ", ".join(f"`{name}`" for name in changed)
        raise EngineOptionsRefusedError(
            f"The options of the model's version change {names}, which it does not name."
        )


def _parser() -> argparse.ArgumentParser:
    parser = make_arg_parser(FlexibleArgumentParser())
    parser.error = _refuse  # otherwise it ends the process
    return cast("argparse.ArgumentParser", parser)


def _blamed_options(
    arguments_of: Callable[[Mapping[str, Any]], list[str]], options: Mapping[str, Any]
) -> list[str]:
    """Return the options without which vLLM accepts the others; none if they are too many."""
    if len(options) > _TRIALS_MAX:
        return []
    blamed = []
    for name in options:
        others = {other: value for other, value in options.items() if other != name}
        if isinstance(_try(arguments_of(others)), EngineConfig):
            blamed.append(name)
    return blamed


def _try(arguments: list[str]) -> EngineConfig | Exception:
    try:
        return EngineConfig(arguments)
    except Exception as failure:  # noqa: BLE001  vLLM documents none
        return failure


def _message_of(failure: Exception) -> str:
    if isinstance(failure, ValidationError):
        errors = failure.errors(include_url=False, include_input=False, include_context=False)
        parts = [".".join(map(str, (*error["loc"], error["msg"]))) for error in errors]
        message = "; ".join(parts)
    else:
        message = str(failure) or type(failure).__name__
    message = " ".join(message.replace("Value error, ", "").split())
    return message if len(message) <= _MESSAGE_CHARS_MAX else message[:_MESSAGE_CHARS_MAX] + "…"


def _refuse(message: str) -> NoReturn:
    raise _RefusedArgumentsError(message)


def _require_parser(option: str, name: str | None, known: Callable[[], Collection[str]]) -> None:
    """VLLM checks the name of a parser only in the first call."""
    if name and name not in known():
        names = ", ".join(sorted(known()))
        raise _RefusedArgumentsError(f"{option}: vLLM has no {name!r}; it has {names}.")


def _tool_parsers() -> Collection[str]:
    return list(ToolParserManager.list_registered())


def _reasoning_parsers() -> Collection[str]:
    return list(ReasoningParserManager.list_registered())
