"""`millrace batch`: submit a bulk job, watch it, fetch its results, cancel it, delete it."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from cli.client import DEFAULT_URL, KeyOption, QuietOption, UrlOption, connect
from cli.exits import EXIT_CODES_HELP, CommandGroup, ExitCode, JobNotEndedError
from cli.job_display import JobDisplay
from cli.job_progress import exit_code_of, progress_of, wait_for_end
from cli.job_views import LIST_HEADERS, list_row, say_where, status_rows
from cli.result_files import copy_file, input_to_upload, save_file
from cli.submit_options import (
    DeduplicateOption,
    MaxFailedItemsOption,
    MaxFailedRatioOption,
    MaxTotalTokensOption,
    PriorityOption,
    SealOption,
    given,
)
from cli.tables import Form, FormOption, write_json, write_table
from core.clock import SystemClock

if TYPE_CHECKING:
    import openai
    from openai.types import Batch

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    help="Submit bulk jobs, watch them, fetch their results, cancel and delete them.",
    epilog=EXIT_CODES_HELP,
)

IdArgument: TypeAlias = Annotated[str, typer.Argument(metavar="ID", help="The job, `batch_…`.")]
TimeoutOption: TypeAlias = Annotated[
    float | None,
    typer.Option(min=0, help="Seconds to wait at most; then exit 124. The job goes on."),
]
OutputOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Write the output file here, whole or not at all."),
]
ErrorsOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--errors", help="Write the error file here: items that did not succeed."),
]


@app.command()
def submit(  # noqa: PLR0913, PLR0917  each one is an option of the command line
    file: Annotated[str, typer.Argument(help="JSONL, one request a line; - reads stdin.")],
    endpoint: Annotated[
        str, typer.Option(help="The url of every line, like /v1/chat/completions.")
    ],
    completion_window: Annotated[
        str, typer.Option(help="Time for all of it; what is left then expires.")
    ] = "24h",
    metadata: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE kept with the job; may be repeated.")
    ] = None,
    priority: PriorityOption = None,
    seal: SealOption = True,
    deduplicate: DeduplicateOption = False,
    max_failed_items: MaxFailedItemsOption = None,
    max_failed_ratio: MaxFailedRatioOption = None,
    max_total_tokens: MaxTotalTokensOption = None,
    wait: Annotated[bool, typer.Option("--wait", help="Stay until the job has ended.")] = False,
    timeout: TimeoutOption = None,
    output: OutputOption = None,
    errors: ErrorsOption = None,
    quiet: QuietOption = False,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = "",
) -> None:
    """Upload FILE, create a job over it and print the job's id on stdout.

    With --wait, show progress on stderr until the job has ended, and say where its results are.
    --output and --errors wait as well and write the two files.
    """
    pairs = metadata_pairs(metadata or [])
    client = connect(url, key)
    with input_to_upload(file) as content:
        name = "stdin.jsonl" if file == "-" else Path(file).name
        uploaded = client.files.create(file=(name, content), purpose="batch")
    # The server knows what it serves; the types of the client lag behind.
    asked: dict[str, Any] = {"endpoint": endpoint, "completion_window": completion_window}
    if pairs:
        asked["metadata"] = pairs
    asked["extra_body"] = given(
        priority=priority,
        sealed=None if seal else False,
        deduplicate=deduplicate or None,
        max_failed_items=max_failed_items,
        max_failed_ratio=max_failed_ratio,
        max_total_tokens=max_total_tokens,
    )
    batch = client.batches.create(
        input_file_id=uploaded.id,
        **asked,
    )
    typer.echo(batch.id)
    if not (wait or output or errors):
        return
    ended = _wait(client, batch.id, timeout, quiet)
    _save(client, ended, output, errors)
    if not quiet:
        say_where(ended, output, errors)
    raise typer.Exit(exit_code_of(progress_of(ended)))


@app.command()
def status(
    job: IdArgument,
    form: FormOption = Form.TABLE,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = "",
) -> None:
    """Show a job as it is now. JSON is the batch object as the server sent it."""
    batch = connect(url, key).batches.retrieve(job)
    if form is Form.JSON:
        write_json(batch.to_dict(mode="json"))
        return
    write_table(("field", "value"), status_rows(batch))


@app.command()
def watch(
    job: IdArgument,
    timeout: TimeoutOption = None,
    quiet: QuietOption = False,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = "",
) -> None:
    """Show a job's progress on stderr until it has ended; print its last state on stdout."""
    client = connect(url, key)
    ended = _wait(client, job, timeout, quiet)
    typer.echo(ended.status)
    if not quiet:
        say_where(ended, None, None)
    raise typer.Exit(exit_code_of(progress_of(ended)))


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
    if output is None:
        copy_file(client, batch.output_file_id, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    _save(client, batch, output, errors)
    code = exit_code_of(progress)
    if not quiet and code is not ExitCode.OK:
        say_where(batch, output, errors)
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
    connect(url, key).delete(f"/batches/{job}", cast_to=object)
    typer.echo("deleted")


@app.command("list")
def list_jobs(
    limit: Annotated[int, typer.Option(min=1, max=100, help="Jobs to list, newest first.")] = 20,
    after: Annotated[str | None, typer.Option(help="Go on behind this job.")] = None,
    form: FormOption = Form.TABLE,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = "",
) -> None:
    """List your jobs, newest first. JSON is one array of batch objects."""
    client = connect(url, key)
    asked: dict[str, Any] = {"after": after} if after else {}
    page = client.batches.list(limit=limit, **asked)
    if form is Form.JSON:
        write_json([batch.to_dict(mode="json") for batch in page.data])
    else:
        write_table(LIST_HEADERS, [list_row(batch) for batch in page.data])
    if page.has_more and page.data:
        typer.echo(f"more: --after {page.data[-1].id}", err=True)


def metadata_pairs(texts: list[str]) -> dict[str, str]:
    """Return what `--metadata KEY=VALUE` said; a later one wins. Raises typer.BadParameter."""
    pairs = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise typer.BadParameter("must be KEY=VALUE", param_hint="--metadata")
        pairs[name] = value
    return pairs


def _wait(client: "openai.OpenAI", job: str, timeout_s: float | None, quiet: bool) -> "Batch":
    with JobDisplay(job, quiet=quiet) as display:
        return wait_for_end(
            lambda: client.batches.retrieve(job),
            display.show,
            timeout_s=timeout_s,
            clock=SystemClock(),
            sleep=time.sleep,
        )


def _save(
    client: "openai.OpenAI", batch: "Batch", output: Path | None, errors: Path | None
) -> None:
    if output is not None:
        save_file(client, batch.output_file_id, output)
    if errors is not None:
        save_file(client, batch.error_file_id, errors)
