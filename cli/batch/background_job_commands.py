"""`millrace jobs`: single requests that were answered 202."""

from typing import Annotated, Any, TypeAlias

import typer

from cli.api_client import Client, get_json, json_object, path_segment, require_id, with_client
from cli.batch.job_display import time_text
from cli.exits import JobStillRunningError
from cli.output import FormatOption, OutputFormat, write_output

app = typer.Typer(help="Show single requests that were answered 202, cancel and delete them.")

IdArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="ID", help="The id in the 202 response.", callback=require_id)
]

_ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
_TIMES = ("created_at", "expires_at", "completed_at", "cancelled_at", "expired_at")


@app.command()
@with_client
def show(client: Client, job: IdArgument, output_format: FormatOption = OutputFormat.TABLE) -> None:
    """Show a request. JSON is the job object of the API with the response."""
    _write(get_json(client, _path(job)), output_format)


@app.command()
@with_client
def cancel(
    client: Client, job: IdArgument, output_format: FormatOption = OutputFormat.TABLE
) -> None:
    """Cancel a request that has no response yet, and show it."""
    options: Any = {"params": {"cancel_only": "true"}}  # never delete an answer by a late cancel
    _write(json_object(client.delete(_path(job), cast_to=object, options=options)), output_format)


@app.command()
@with_client
def delete(client: Client, job: IdArgument) -> None:
    """Delete a request that has ended, with its response. Its bill remains.

    Exit code 5: it has not ended.
    """
    if get_json(client, _path(job)).get("status") not in _ENDED:
        raise JobStillRunningError
    client.delete(_path(job), cast_to=object)
    typer.echo("deleted")


def job_fields(job: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the fields of a job that are not empty, as (name, value)."""
    usage, response, error = (job.get(name) or {} for name in ("usage", "response", "error"))
    tokens = f"{usage.get('input_tokens', 0)} in, {usage.get('output_tokens', 0)} out"
    found = [
        *((name, str(job.get(name) or "")) for name in ("id", "status", "endpoint", "model")),
        ("version", str(job.get("model_version") or "")),
        *((name.removesuffix("_at"), time_text(job.get(name))) for name in _TIMES),
        ("tokens", tokens if usage else ""),
        ("answer", f"HTTP {response['status_code']}" if "status_code" in response else ""),
        ("error", f"{error.get('message')} ({error.get('code')})" if error else ""),
    ]
    return [row for row in found if row[1]]


def _path(job: str) -> str:
    return f"/jobs/{path_segment(job)}"


def _write(job: dict[str, Any], output_format: OutputFormat) -> None:
    write_output(output_format, job, ("field", "value"), lambda: job_fields(job))
