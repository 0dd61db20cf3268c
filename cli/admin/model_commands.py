"""`millrace models`: register and list model versions; its other commands have own modules."""

from typing import Annotated, Any

import typer

from cli.admin.administration import administration
from cli.admin.model_key_commands import app as keys
from cli.admin.model_key_commands import republish
from cli.admin.model_name_commands import alias, retire
from cli.admin.model_show_commands import diff, show
from cli.admin.model_verify_command import verify
from cli.admin.operator_connections import DataOption, transaction
from cli.output import FormatOption, OutputFormat, write_output
from registry.models import ENDPOINTS, ENGINES, add_model
from tenancy.audit_log import Action
from tenancy.installation_log import CLI_OPERATOR, record_operator_event

app = typer.Typer(help="Register and list models. For operators: connects to Postgres.")

_HEADERS = ("name", "version", "pool", "engine", "verification", "endpoints")


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="The `model` of requests.")],
    version: Annotated[str, typer.Option(help="Name of these weights; its meaning is fixed.")],
    pool: Annotated[
        str, typer.Option(help="MILLRACE_GPU_POOL of its replicas; part of topic names.")
    ],
    engine: Annotated[str, typer.Option(help=f"One of {', '.join(ENGINES)}.")],
    endpoints: Annotated[
        str, typer.Option(help=f"Comma-separated, of {', '.join(ENDPOINTS)}; /v1 may be omitted.")
    ],
    data: DataOption = None,
) -> None:
    """Register a model version; the newest version of a name serves new jobs.

    A version never changes: adding it again does nothing, and fails when a field differs. A new
    pool needs its topics: `millrace topics create`.
    """
    with transaction(data) as connection:
        added = add_model(
            connection, name, version, pool=pool, engine=engine, endpoints=endpoint_paths(endpoints)
        )
        subject, details = f"{added.name}@{added.version}", {"pool": pool, "engine": engine}
        record_operator_event(connection, CLI_OPERATOR, Action.MODEL_REGISTERED, subject, details)
    typer.echo(f"{added.name} {added.version}")


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


def endpoint_paths(text: str) -> tuple[str, ...]:
    """Parse comma-separated endpoints; adds /v1 to those that do not start with a slash."""
    names = (name.strip() for name in text.split(","))
    return tuple(n if n.startswith("/") else f"/v1/{n}" for n in names if n)


def _cells(model: dict[str, Any]) -> tuple[str, ...]:
    texts = (model[name] for name in ("name", "version", "pool", "engine"))
    verification = model["verification"] if model["retired_at"] is None else "retired"
    return (*texts, verification, ",".join(model["endpoints"]))


for _command in (show, diff, verify, alias, retire, republish):
    app.command()(_command)
app.add_typer(keys, name="keys")
