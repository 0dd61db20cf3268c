"""`millrace models plan`: whether a model fits a GPU, before it is published or loaded."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cli.admin.memory_plan_view import HEADERS, plan_rows
from cli.admin.operator_connections import DataOption, object_store, transaction
from cli.exits import ExitCode
from cli.output import FormatOption, OutputFormat, write_output
from core.errors import SettingsError
from registry.engine_options.engine_options import check_options
from registry.memory_plan.memory_plan import MEMORY_SHARE, MemoryPlan
from registry.memory_plan.model_folder_plan import plan_of_folder
from registry.memory_plan.plan_document import plan_document
from registry.publishing.folder_manifest import read_options
from registry.publishing.stored_plan import PlanFolder, plan_stored
from registry.store.version_details import read_plannable

_DEVICE_GIB: Final = 80.0
_GIB: Final = 2**30
_OF_REPLICA: Final = ("adapters_max", "adapter_rank_max")
"""Settings of a replica that take memory; the other options are those of a version."""


def plan(  # noqa: PLR0913, PLR0917  one parameter an option
    model: Annotated[
        str,
        typer.Argument(help="A folder with config.json and weights, a name, or NAME@VERSION."),
    ],
    device_gib: Annotated[
        float, typer.Option(min=0.1, max=10_000, help="Memory of each GPU in GiB.")
    ] = _DEVICE_GIB,
    option: Annotated[
        list[str] | None,
        typer.Option(help="Engine option, NAME=VALUE, such as max_model_len=4096; repeatable."),
    ] = None,
    options: Annotated[
        Path | None, typer.Option(help="File with engine options, TOML or JSON.")
    ] = None,
    memory_share: Annotated[
        float, typer.Option(min=0.01, max=1, help="The share of it that a replica may use.")
    ] = MEMORY_SHARE,
    data: DataOption = None,
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Show what a model needs of a GPU's memory, and what is left for its KV cache.

    Reads the headers of the weights alone, of a published version too. Options replace those of the
    version; adapters_max and adapter_rank_max of a replica count as well. Exit code 1: it does not
    fit.
    """
    given = {} if options is None else read_options(options)
    given |= parse_options(option or ())
    check_options({name: value for name, value in given.items() if name not in _OF_REPLICA})

    def plan_folder(folder: Path, own: Mapping[str, Any]) -> MemoryPlan:
        return plan_of_folder(folder, {**own, **given}, int(device_gib * _GIB), memory_share)

    folder = Path(model)
    found = plan_folder(folder, {}) if folder.is_dir() else _plan_version(model, data, plan_folder)
    write_output(output_format, plan_document(found), HEADERS, lambda: plan_rows(found))
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


def _plan_version(model: str, data: Path | None, plan_folder: PlanFolder) -> MemoryPlan:
    with transaction(data) as connection:
        manifest = read_plannable(connection, model)
    return plan_stored(object_store(data), manifest, plan_folder)
