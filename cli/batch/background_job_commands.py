"""`millrace jobs`: single requests that outlived their connection."""

from typing import Annotated, Any, TypeAlias

import typer

from cli.batch.job_views import time_text
from cli.client import DEFAULT_URL, KeyOption, UrlOption, connect
from cli.exits import EXIT_CODES_HELP
from cli.output_tables import FormatOption, OutputFormat, write_json, write_table
from cli.path_ids import path_segment, require_id

app = typer.Typer(
    no_args_is_help=True,
    help="Look at single requests that were answered 202, and cancel them.",
    epilog=EXIT_CODES_HELP,
)

IdArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="ID", help="The id that 202 gave.", callback=require_id)
]

_TIMES = ("created_at", "expires_at", "completed_at", "cancelled_at", "expired_at")


@app.command()
def show(
    job: IdArgument,
    form: FormatOption = OutputFormat.TABLE,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = "",
) -> None:
    """Show a request as it is now. JSON is the job as the server sent it, its answer included."""
    with connect(url, key) as client:
        _write(_object(client.get(_path(job), cast_to=object)), form)


@app.command()
def cancel(
    job: IdArgument,
    form: FormatOption = OutputFormat.TABLE,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = "",
) -> None:
    """Cancel a request that has no answer yet, and show it."""
    with connect(url, key) as client:
        _write(_object(client.delete(_path(job), cast_to=object)), form)


def rows(job: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what is known of a job as (field, value), without what is empty."""
    usage, response, error = (job.get(name) or {} for name in ("usage", "response", "error"))
    tokens = f"{usage.get('input_tokens', 0)} in, {usage.get('output_tokens', 0)} out"
    found = [
        *((name.replace("_", " "), str(job.get(name) or "")) for name in ("id", "status")),
        ("endpoint", str(job.get("endpoint") or "")),
        ("model", str(job.get("model") or "")),
        ("version", str(job.get("model_version") or "")),
        *((name.removesuffix("_at"), time_text(job.get(name))) for name in _TIMES),
        ("tokens", tokens if usage else ""),
        ("answer", f"HTTP {response['status_code']}" if "status_code" in response else ""),
        ("error", f"{error.get('message')} ({error.get('code')})" if error else ""),
    ]
    return [row for row in found if row[1]]


def _path(job: str) -> str:
    return f"/jobs/{path_segment(job)}"


def _object(answer: object) -> dict[str, Any]:
    return answer if isinstance(answer, dict) else {}


def _write(job: dict[str, Any], form: OutputFormat) -> None:
    if form is OutputFormat.JSON:
        write_json(job)
    else:
        write_table(("field", "value"), rows(job))
