"""`millrace batch` for jobs that run: pause, resume, update, append, seal."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.batch.batch_options import IdArgument
from cli.batch.input_upload import FILE_HELP, uploaded_input
from cli.client import DEFAULT_URL, KeyOption, UrlOption, connect
from cli.path_ids import path_segment
from core.urgency import PRIORITY_MAX, PRIORITY_MIN

if TYPE_CHECKING:
    from openai.types import Batch


def pause(job: IdArgument, url: UrlOption = DEFAULT_URL, key: KeyOption = "") -> None:
    """Pause a job: what runs ends, nothing more begins. Its completion window goes on."""
    typer.echo(_state(_post(url, key, job, "/pause")))


def resume(job: IdArgument, url: UrlOption = DEFAULT_URL, key: KeyOption = "") -> None:
    """Let a paused job go on."""
    typer.echo(_state(_post(url, key, job, "/resume")))


def update(
    job: IdArgument,
    completion_window: Annotated[
        str | None, typer.Option(help="Time for all of it, counted from its creation.")
    ] = None,
    expires_at: Annotated[
        datetime | None,
        typer.Option(formats=["%Y-%m-%dT%H:%M:%S"], help="When it expires, in UTC."),
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option(
            min=PRIORITY_MIN, max=PRIORITY_MAX, help="Among your jobs; the highest goes first."
        ),
    ] = None,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = "",
) -> None:
    """Change the deadline or the priority of a job; print when it expires, and its priority."""
    wanted: dict[str, Any] = {"completion_window": completion_window, "priority": priority}
    if expires_at is not None:
        wanted["expires_at"] = int(expires_at.replace(tzinfo=UTC).timestamp())
    body = {name: value for name, value in wanted.items() if value is not None}
    if not body:
        raise typer.BadParameter("say what to change", param_hint="--completion-window")
    batch = _post(url, key, job, "", body)
    expires = datetime.fromtimestamp(batch.expires_at or 0, UTC).isoformat()
    typer.echo(f"expires {expires} priority {_own(batch)['priority']}")


def append(
    job: IdArgument,
    file: Annotated[str, typer.Argument(help=FILE_HELP)],
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = "",
) -> None:
    """Upload FILE and append it to a job that was submitted with --no-seal; print the file's id.

    Its items count once it was found valid: see `millrace batch status`.
    """
    with uploaded_input(connect(url, key), file) as file_id:
        _post(url, key, job, "/append", {"input_file_id": file_id})
    typer.echo(file_id)


def seal(job: IdArgument, url: UrlOption = DEFAULT_URL, key: KeyOption = "") -> None:
    """Say that no more files will be appended: only then can the job complete."""
    typer.echo(_state(_post(url, key, job, "/seal")))


def _post(url: str, key: str, job: str, action: str, body: dict[str, Any] | None = None) -> "Batch":
    from openai.types import Batch  # takes a second, which commands of operators do without

    return connect(url, key).post(f"/batches/{path_segment(job)}{action}", cast_to=Batch, body=body)


def _state(batch: "Batch") -> str:
    """Return the state that a person means: a paused job is in progress for the API."""
    return "paused" if _own(batch).get("paused_at") else batch.status


def _own(batch: "Batch") -> dict[str, Any]:
    return (batch.model_extra or {}).get("millrace") or {}
