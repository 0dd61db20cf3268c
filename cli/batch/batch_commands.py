"""`millrace batch`: bulk jobs from the shell; here those verbs that are one question each."""

from typing import Annotated, Any

import typer

from cli.batch.batch_options import ErrorsOption, IdArgument, OutputOption
from cli.batch.job_progress import job_exit_code, progress_of
from cli.batch.job_views import LIST_HEADERS, list_row, print_outcome, status_rows
from cli.batch.output_targets import STDOUT, open_targets
from cli.batch.submit_command import submit
from cli.batch.watch_command import watch
from cli.client import DEFAULT_URL, KeyOption, QuietOption, UrlOption, connect
from cli.exits import EXIT_CODES_HELP, ExitCode, JobNotEndedError
from cli.output_tables import FormatOption, OutputFormat, write_json, write_table
from cli.path_ids import path_segment

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
    form: FormatOption = OutputFormat.TABLE,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = "",
) -> None:
    """Show a job as it is now. JSON is the batch object as the server sent it."""
    batch = connect(url, key).batches.retrieve(job)
    if form is OutputFormat.JSON:
        write_json(batch.to_dict(mode="json"))
        return
    write_table(("field", "value"), status_rows(batch))


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

    Exit code 6 says that some items failed: --errors FILE fetches their lines. A cancelled or
    expired job (exit code 7) has the results of every item that ended before.
    """
    client = connect(url, key)
    batch = client.batches.retrieve(job)
    progress = progress_of(batch)
    if not progress.is_over:
        raise JobNotEndedError(f"The job is {progress.state}; `millrace batch watch {job}` waits.")
    with open_targets(output or STDOUT, errors, quiet=quiet) as save:
        save(client, batch)
    code = job_exit_code(progress)
    if not quiet and code is not ExitCode.OK:
        print_outcome(batch, output, errors)
    raise typer.Exit(code)


@app.command()
def cancel(job: IdArgument, url: UrlOption = DEFAULT_URL, key: KeyOption = "") -> None:
    """Cancel a job: items that have ended stay, all others get a line in the error file.

    Prints the job's state on stdout; it is `cancelling` until the last line is written.
    """
    typer.echo(connect(url, key).batches.cancel(job).status)


@app.command()
def delete(job: IdArgument, url: UrlOption = DEFAULT_URL, key: KeyOption = "") -> None:
    """Delete a job that has ended: its items, results and files, for good. The bill stays.

    An input file stays while another job of yours names it. Exit code 5: the job has not ended.
    """
    connect(url, key).delete(f"/batches/{path_segment(job)}", cast_to=object)
    typer.echo("deleted")


@app.command("list")
def list_jobs(
    limit: Annotated[int, typer.Option(min=1, max=100, help="Jobs to list, newest first.")] = 20,
    after: Annotated[str | None, typer.Option(help="Go on behind this job.")] = None,
    form: FormatOption = OutputFormat.TABLE,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = "",
) -> None:
    """List your jobs, newest first. JSON is one array of batch objects."""
    client = connect(url, key)
    asked: dict[str, Any] = {"after": after} if after else {}
    page = client.batches.list(limit=limit, **asked)
    if form is OutputFormat.JSON:
        write_json([batch.to_dict(mode="json") for batch in page.data])
    else:
        write_table(LIST_HEADERS, [list_row(batch) for batch in page.data])
    if page.has_more and page.data:
        typer.echo(f"more: --after {page.data[-1].id}", err=True)
