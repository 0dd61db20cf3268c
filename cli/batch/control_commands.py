"""`millrace batch` for running jobs: pause, resume, update, append, seal."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.api_client import (
    DEFAULT_URL,
    KeyOption,
    UrlOption,
    connect,
    drop_none,
    extension_fields,
    path_segment,
)
from cli.batch.batch_options import IdArgument, PriorityOption
from cli.batch.input_upload import FILE_HELP, uploaded_input

if TYPE_CHECKING:
    from openai.types import Batch


def pause(job: IdArgument, url: UrlOption = DEFAULT_URL, key: KeyOption = "") -> None:
    """Pause a job: items in flight end, no others start. Its completion window continues."""
    typer.echo(_state(_post(url, key, job, "/pause")))


def resume(job: IdArgument, url: UrlOption = DEFAULT_URL, key: KeyOption = "") -> None:
    """Resume a paused job."""
    typer.echo(_state(_post(url, key, job, "/resume")))


def update(
    job: IdArgument,
    completion_window: Annotated[
        str | None, typer.Option(help="Completion window, counted from the job's creation.")
    ] = None,
    expires_at: Annotated[
        datetime | None,
        typer.Option(formats=["%Y-%m-%dT%H:%M:%S"], help="Time of expiry, in UTC."),
    ] = None,
    priority: PriorityOption = None,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = "",
) -> None:
    """Change the deadline or the priority of a job; print the time of expiry and the priority."""
    expires_s = expires_at and int(expires_at.replace(tzinfo=UTC).timestamp())
    body = drop_none(completion_window=completion_window, priority=priority, expires_at=expires_s)
    if not body:
        raise typer.BadParameter("give at least one option", param_hint="--completion-window")
    batch = _post(url, key, job, "", body)
    expires = datetime.fromtimestamp(batch.expires_at or 0, UTC).isoformat()
    typer.echo(f"expires {expires} priority {extension_fields(batch)['priority']}")


def append(
    job: IdArgument,
    file: Annotated[str, typer.Argument(help=FILE_HELP)],
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = "",
) -> None:
    """Upload FILE and append it to a job submitted with --no-seal; print the file's id.

    Its items count once the file is validated: see `millrace batch status`.
    """
    with uploaded_input(connect(url, key), file) as file_id:
        _post(url, key, job, "/append", {"input_file_id": file_id})
    typer.echo(file_id)


def seal(job: IdArgument, url: UrlOption = DEFAULT_URL, key: KeyOption = "") -> None:
    """Seal a job: it accepts no more files, and can complete."""
    typer.echo(_state(_post(url, key, job, "/seal")))


def _post(url: str, key: str, job: str, action: str, body: dict[str, Any] | None = None) -> "Batch":
    from openai.types import Batch  # importing takes a second; operator commands do not need it

    return connect(url, key).post(f"/batches/{path_segment(job)}{action}", cast_to=Batch, body=body)


def _state(batch: "Batch") -> str:
    """Return the status of a job; `paused` for a paused one, which is in progress for the API."""
    return "paused" if extension_fields(batch).get("paused_at") else batch.status
