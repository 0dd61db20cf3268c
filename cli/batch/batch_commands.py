"""`millrace batch`: status, results, cancel, delete and list; registers submit and watch."""

from typing import Annotated, Any

import typer

from cli.api_client import (
    DEFAULT_URL,
    KeyOption,
    QuietOption,
    UrlOption,
    connect,
    drop_none,
    path_segment,
)
from cli.batch.batch_options import ErrorsOption, IdArgument, OutputOption
from cli.batch.job_downloads import STDOUT, check_targets
from cli.batch.job_progress import job_exit_code, progress_of
from cli.batch.job_views import LIST_HEADERS, list_row, print_outcome, status_rows
from cli.batch.submit_command import submit
from cli.batch.watch_command import watch
from cli.exits import EXIT_CODES_HELP, ExitCode, JobStillRunningError
from cli.output_tables import FormatOption, OutputFormat, print_next_page, write_output

app = typer.Typer(
    no_args_is_help=True,
    help="Submit bulk jobs, watch them, fetch their results, cancel and delete them.",
    epilog=EXIT_CODES_HELP,
)
app.command()(submit)
app.command()(watch)


@app.command()
def status(
    job: IdArgument,
    output_format: FormatOption = OutputFormat.TABLE,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = "",
) -> None:
    """Show a job. JSON is the batch object of the API."""
    batch = connect(url, key).batches.retrieve(job)
    value = batch.to_dict(mode="json")
    write_output(output_format, value, ("field", "value"), lambda: status_rows(batch))


@app.command()
def results(
    job: IdArgument,
    output: OutputOption = None,
    errors: ErrorsOption = None,
    quiet: QuietOption = False,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = "",
) -> None:
    """Fetch the results of a job that has ended, to stdout or to --output.

    Exit code 6: some items failed; --errors FILE fetches their lines. A cancelled or expired job
    (exit code 7) has the results of the items that ended before.
    """
    client = connect(url, key)
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
def cancel(job: IdArgument, url: UrlOption = DEFAULT_URL, key: KeyOption = "") -> None:
    """Cancel a job: items that have ended keep their results, all others get an error line.

    Prints the job's state on stdout: `cancelling` until the files are written.
    """
    typer.echo(connect(url, key).batches.cancel(job).status)


@app.command()
def delete(job: IdArgument, url: UrlOption = DEFAULT_URL, key: KeyOption = "") -> None:
    """Delete a job that has ended, with its items, results and files. Its bill remains.

    An input file remains while another of your jobs uses it. Exit code 5: the job has not ended.
    """
    connect(url, key).delete(f"/batches/{path_segment(job)}", cast_to=object)
    typer.echo("deleted")


@app.command("list")
def list_jobs(
    limit: Annotated[int, typer.Option(min=1, max=100, help="Jobs to list, newest first.")] = 20,
    after: Annotated[str | None, typer.Option(help="Continue after this job.")] = None,
    output_format: FormatOption = OutputFormat.TABLE,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = "",
) -> None:
    """List your jobs, newest first. JSON is an array of batch objects."""
    client = connect(url, key)
    cursor: dict[str, Any] = drop_none(after=after or None)
    page = client.batches.list(limit=limit, **cursor)
    values = [batch.to_dict(mode="json") for batch in page.data]
    write_output(output_format, values, LIST_HEADERS, lambda: [list_row(b) for b in page.data])
    if page.has_more and page.data:
        print_next_page(page.data[-1].id)
