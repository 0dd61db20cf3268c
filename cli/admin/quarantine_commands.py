"""`millrace quarantines`: tenants whose bulk jobs wait on a pool after too many crashes."""

from typing import Annotated, Any

import typer

from cli.admin.administration import administration
from cli.admin.operator_connections import DataOption
from cli.batch.job_display import time_text
from cli.exits import NotFoundError
from cli.output import FormatOption, OutputFormat, write_output

app = typer.Typer(
    help="List and end quarantines of tenants on a pool. For operators: connects to Postgres, or "
    "to the API with MILLRACE_OPERATOR_KEY."
)

_HEADERS = ("id", "tenant", "pool", "batch", "since", "until")


@app.command("list")
def list_quarantines(
    data: DataOption = None, output_format: FormatOption = OutputFormat.TABLE
) -> None:
    """List the tenants whose bulk jobs wait on a pool: a job of theirs exceeded its crash budget.

    The last such batch is shown, and when the quarantine ends by itself.
    """
    with administration(data) as installation:
        found = installation.quarantines()
    write_output(output_format, found, _HEADERS, lambda: [_cells(one) for one in found])


@app.command()
def end(
    quarantine_id: Annotated[
        str, typer.Argument(metavar="QUARANTINE_ID", help="The quarantine's id, `quar_…`.")
    ],
    data: DataOption = None,
) -> None:
    """End a quarantine now: the tenant's bulk jobs on the pool go on within seconds."""
    with administration(data) as installation:
        ended = installation.end_quarantine(quarantine_id)
    if not ended:
        raise NotFoundError("No active quarantine has this id.")
    typer.echo(f"{quarantine_id} has ended.", err=True)


def _cells(one: dict[str, Any]) -> tuple[str, ...]:
    times = (time_text(one["created_at"]), time_text(one["ends_at"]))
    return (one["id"], one["tenant"], one["pool"], one["batch_id"], *times)
