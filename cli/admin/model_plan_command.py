"""`millrace models plan`: whether a model fits a GPU, before it is published or loaded."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cli.admin.memory_plan_view import HEADERS, plan_json, plan_rows
from cli.exits import ExitCode
from cli.output import FormatOption, OutputFormat, write_output
from core.errors import SettingsError
from registry.memory_plan.memory_plan import MEMORY_SHARE
from registry.memory_plan.model_folder_plan import plan_of_folder

_GIB: Final = 2**30


def plan(
    folder: Annotated[
        Path, typer.Argument(help="The model: config.json and weights in safetensors files.")
    ],
    device_gib: Annotated[
        float, typer.Option(min=0.1, max=10_000, help="Memory of each GPU in GiB, such as 80.")
    ],
    option: Annotated[
        list[str] | None,
        typer.Option(help="Engine option, NAME=VALUE, such as max_model_len=4096; repeatable."),
    ] = None,
    memory_share: Annotated[
        float, typer.Option(min=0.01, max=1, help="The share of it that a replica may use.")
    ] = MEMORY_SHARE,
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Show what a model needs of a GPU's memory, and what is left for its KV cache.

    Reads the headers of the weights alone. Exit code 1: it does not fit.
    """
    options = parse_options(option or ())
    found = plan_of_folder(folder, options, int(device_gib * _GIB), memory_share)
    write_output(output_format, plan_json(found), HEADERS, lambda: plan_rows(found))
    if not found.fits:
        raise typer.Exit(ExitCode.FAILED)


def parse_options(texts: Sequence[str]) -> dict[str, Any]:
    """Return options by name; a value that is no JSON is a text. Raises SettingsError."""
    options: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise SettingsError(f"--option {text!r}: give NAME=VALUE")
        try:
            options[name] = json.loads(value)
        except (ValueError, RecursionError):
            options[name] = value
    return options
