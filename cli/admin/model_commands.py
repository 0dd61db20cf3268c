"""`millrace models`: register and list model versions."""

from typing import Annotated

import typer

from cli.admin.operator_connections import DataOption, transaction
from cli.output import FormatOption, OutputFormat, write_output
from registry.models import ENDPOINTS, ENGINES, ModelVersion, add_model
from registry.models import list_models as newest_versions

app = typer.Typer(help="Register and list models. For operators: connects to Postgres.")

_HEADERS = ("name", "version", "pool", "engine", "endpoints")


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
    typer.echo(f"{added.name} {added.version}")


@app.command("list")
def list_models(data: DataOption = None, output_format: FormatOption = OutputFormat.TABLE) -> None:
    """List the newest version of every model, which serves new jobs."""
    with transaction(data) as connection:
        found = newest_versions(connection)
    write_output(
        output_format,
        [_as_json(model) for model in found],
        _HEADERS,
        lambda: [(m.name, m.version, m.pool, m.engine, ",".join(m.endpoints)) for m in found],
    )


def endpoint_paths(text: str) -> tuple[str, ...]:
    """Parse comma-separated endpoints; adds /v1 to those that do not start with a slash."""
    names = (name.strip() for name in text.split(","))
    return tuple(n if n.startswith("/") else f"/v1/{n}" for n in names if n)


def _as_json(model: ModelVersion) -> dict[str, object]:
    return {
        "name": model.name,
        "version": model.version,
        "pool": model.pool,
        "engine": model.engine,
        "endpoints": list(model.endpoints),
        "created_at": int(model.created_at.timestamp()),
    }
