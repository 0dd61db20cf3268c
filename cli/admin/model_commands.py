"""`millrace models`: register and list model versions; its other commands have own modules."""

from typing import Annotated, Any

import typer

from cli.admin.administration import administration
from cli.admin.model_collect_command import collect
from cli.admin.model_key_commands import app as keys
from cli.admin.model_key_commands import republish
from cli.admin.model_name_commands import alias, retire
from cli.admin.model_plan_command import plan
from cli.admin.model_show_commands import diff, show
from cli.admin.model_verify_command import verify
from cli.admin.operator_connections import DataOption
from cli.admin.push_commands import push
from cli.admin.version_commands import add, sbom
from cli.output import FormatOption, OutputFormat, write_output

app = typer.Typer(help="Publish, register and list models. For operators: connects to Postgres.")

_HEADERS = ("name", "version", "pool", "engine", "verification", "endpoints")


@app.command("list")
def list_models(
    all_versions: Annotated[
        bool, typer.Option("--all", help="Every version, old and retired ones too.")
    ] = False,
    data: DataOption = None,
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """List the newest version of every model, which serves new jobs."""
    with administration(data) as installation:
        found = installation.models(all_versions=all_versions)
    write_output(output_format, found, _HEADERS, lambda: [_cells(model) for model in found])


def _cells(model: dict[str, Any]) -> tuple[str, ...]:
    texts = (model[name] for name in ("name", "version", "pool", "engine"))
    verification = model["verification"] if model["retired_at"] is None else "retired"
    return (*texts, verification, ",".join(model["endpoints"]))


for _command in (push, add, sbom, plan, show, diff, verify, alias, retire, collect, republish):
    app.command()(_command)
app.add_typer(keys, name="keys")
