"""`millrace batch`: watch, fetch, list, control and delete bulk jobs."""

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from cli.api_client import (
    Batch,
    Client,
    QuietOption,
    drop_none,
    extension_fields,
    path_segment,
    with_client,
)
from cli.batch.batch_options import (
    ErrorsOption,
    IdArgument,
    OutputOption,
    PriorityOption,
    TimeoutOption,
)
from cli.batch.input_upload import FILE_HELP, uploaded_input
from cli.batch.job_display import (
    LIST_HEADERS,
    list_row,
    print_outcome,
    status_rows,
    watch_until_ended,
)
from cli.batch.job_downloads import STDOUT, check_targets
from cli.batch.job_progress import job_exit_code, progress_of
from cli.batch.submit_command import submit
from cli.exits import EXIT_CODES_HELP, ExitCode, JobStillRunningError
from cli.output import FormatOption, OutputFormat, print_next_page, write_output

app = typer.Typer(
    no_args_is_help=True,
    help="Submit bulk jobs, watch them, fetch their results, cancel and delete them.",
    epilog=EXIT_CODES_HELP,
)
app.command()(submit)


@app.command()
@with_client
def watch(
    client: Client, job: IdArgument, timeout: TimeoutOption = None, quiet: QuietOption = False
) -> None:
    """Show a job's progress on stderr until it has ended; print its final state on stdout."""
    ended = watch_until_ended(client, job, timeout_s=timeout, quiet=quiet)
    typer.echo(ended.status)
    print_outcome(ended, None, None, quiet=quiet)
    raise typer.Exit(job_exit_code(progress_of(ended)))


@app.command()
@with_client
def status(
    client: Client, job: IdArgument, output_format: FormatOption = OutputFormat.TABLE
) -> None:
    """Show a job. JSON is the batch object of the API."""
    batch = client.batches.retrieve(job)
    value = batch.to_dict(mode="json")
    write_output(output_format, value, ("field", "value"), lambda: status_rows(batch))


@app.command()
@with_client
def results(
    client: Client,
    job: IdArgument,
    output: OutputOption = None,
    errors: ErrorsOption = None,
    quiet: QuietOption = False,
) -> None:
    """Fetch the results of a job that has ended, to stdout or to --output.

    Exit code 6: some items failed; --errors FILE fetches their lines. A cancelled or expired job
    (exit code 7) has the results of the items that ended before.
    """
    batch = client.batches.retrieve(job)
    progress = progress_of(batch)
    if not progress.has_ended:
        raise JobStillRunningError(
            f"The job is {progress.state}; `millrace batch watch {job}` waits."
        )
    check_targets(output or STDOUT, errors, quiet=quiet)(client, batch)
    code = job_exit_code(progress)
    if not quiet and code is not ExitCode.OK:
        print_outcome(batch, output, errors)
    raise typer.Exit(code)


@app.command()
@with_client
def cancel(client: Client, job: IdArgument) -> None:
    """Cancel a job: items that have ended keep their results, all others get an error line.

    Prints the job's state on stdout: `cancelling` until the files are written.
    """
    typer.echo(client.batches.cancel(job).status)


@app.command()
@with_client
def delete(client: Client, job: IdArgument) -> None:
    """Delete a job that has ended, with its items, results and files. Its bill remains.

    An input file remains while another of your jobs uses it. Exit code 5: the job has not ended.
    """
    client.delete(f"/batches/{path_segment(job)}", cast_to=object)
    typer.echo("deleted")


@app.command("list")
@with_client
def list_jobs(
    client: Client,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Jobs to list, newest first.")] = 20,
    after: Annotated[str | None, typer.Option(help="Continue after this job.")] = None,
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """List your jobs, newest first. JSON is an array of batch objects."""
    cursor: dict[str, Any] = drop_none(after=after or None)
    page = client.batches.list(limit=limit, **cursor)
    values = [batch.to_dict(mode="json") for batch in page.data]
    write_output(output_format, values, LIST_HEADERS, lambda: [list_row(b) for b in page.data])
    if page.has_more and page.data:
        print_next_page(page.data[-1].id)


@app.command()
@with_client
def pause(client: Client, job: IdArgument) -> None:
    """Pause a job: items in flight end, no others start. Its completion window continues."""
    typer.echo(_state(_post(client, job, "/pause")))


@app.command()
@with_client
def resume(client: Client, job: IdArgument) -> None:
    """Resume a paused job."""
    typer.echo(_state(_post(client, job, "/resume")))


@app.command()
@with_client
def update(
    client: Client,
    job: IdArgument,
    completion_window: Annotated[
        str | None, typer.Option(help="Completion window, counted from the job's creation.")
    ] = None,
    expires_at: Annotated[
        datetime | None,
        typer.Option(formats=["%Y-%m-%dT%H:%M:%S"], help="Time of expiry, in UTC."),
    ] = None,
    priority: PriorityOption = None,
) -> None:
    """Change the deadline or the priority of a job; print the time of expiry and the priority."""
    expires_s = expires_at and int(expires_at.replace(tzinfo=UTC).timestamp())
    body = drop_none(completion_window=completion_window, priority=priority, expires_at=expires_s)
    if not body:
        raise typer.BadParameter("give at least one option", param_hint="--completion-window")
    batch = _post(client, job, "", body)
    expires = datetime.fromtimestamp(batch.expires_at or 0, UTC).isoformat()
    typer.echo(f"expires {expires} priority {extension_fields(batch)['priority']}")


@app.command()
@with_client
def append(
    client: Client,
    job: IdArgument,
    file: Annotated[str, typer.Argument(help=FILE_HELP)],
) -> None:
    """Upload FILE and append it to a job submitted with --no-seal; print the file's id.

    Its items count once the file is validated: see `millrace batch status`.
    """
    with uploaded_input(client, file) as file_id:
        _post(client, job, "/append", {"input_file_id": file_id})
    typer.echo(file_id)


@app.command()
@with_client
def seal(client: Client, job: IdArgument) -> None:
    """Seal a job: it accepts no more files, and can complete."""
    typer.echo(_state(_post(client, job, "/seal")))


def _post(client: Client, job: str, action: str, body: dict[str, Any] | None = None) -> Batch:
    from openai.types import Batch  # importing takes a second; operator commands do not need it

    return client.post(f"/batches/{path_segment(job)}{action}", cast_to=Batch, body=body)


def _state(batch: Batch) -> str:
    """Return the status of a job; `paused` for a paused one, which is in progress for the API."""
    return "paused" if extension_fields(batch).get("paused_at") else batch.status
