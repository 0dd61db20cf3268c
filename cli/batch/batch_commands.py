"""`millrace batch`: submit, watch, fetch, list, control and delete bulk jobs."""

import math
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from cli.api_client import (
    Batch,
    Client,
    QuietOption,
    drop_none,
    extension_fields,
    path_segment,
    require_id,
    with_client,
    with_time_limit,
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
from cli.exits import ExitCode, JobStillRunningError
from cli.output import FormatOption, OutputFormat, print_next_page, write_output
from core.urgency import PRIORITY_MAX, PRIORITY_MIN

app = typer.Typer(help="Submit bulk jobs, watch them, fetch their results, cancel and delete them.")

IdArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="ID", help="The job, `batch_…`.", callback=require_id)
]
TimeoutOption: TypeAlias = Annotated[
    float | None,
    typer.Option(min=0, help="Longest wait in seconds; then exit 124. The job continues."),
]
OutputOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", help="Write the output file here, completely or not at all; - is stdout."
    ),
]
ErrorsOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--errors", help="Write the error file here: items that did not succeed."),
]
PriorityOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=PRIORITY_MIN, max=PRIORITY_MAX, help="Priority among your jobs; the highest runs first."
    ),
]
NotBeforeOption: TypeAlias = Annotated[
    datetime | None,
    typer.Option(formats=["%Y-%m-%dT%H:%M:%S"], help="No item runs before this time, in UTC."),
]
_BULK_HOURS_HELP = "Hours in which items may run, such as `22:00-06:00 Europe/Berlin`"
_MaxFailedItems: TypeAlias = Annotated[
    int | None, typer.Option(min=0, help="Stop the job when more items than this fail.")
]
_MaxFailedRatio: TypeAlias = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="Stop the job when a larger share of executed items fails."),
]
_FailedRatioSample: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="Executed items from which the ratio counts; default 100.")
]
_MaxTotalTokens: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="Stop the job when it has used this many tokens.")
]


@app.command()
@with_client
def submit(  # noqa: PLR0913, PLR0917  each one is an option of the command line
    client: Client,
    file: Annotated[str, typer.Argument(help=FILE_HELP)],
    endpoint: Annotated[
        str, typer.Option(help="The url of every line, such as /v1/chat/completions.")
    ],
    completion_window: Annotated[
        str, typer.Option(help="Time for the entire job; items left then expire.")
    ] = "24h",
    metadata: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE stored with the job; may be repeated.")
    ] = None,
    priority: PriorityOption = None,
    seal: Annotated[
        bool, typer.Option("--seal/--no-seal", help="--no-seal: more files will be appended.")
    ] = True,
    deduplicate: Annotated[
        bool,
        typer.Option("--deduplicate", help="Execute identical lines once; the others get copies."),
    ] = False,
    not_before: NotBeforeOption = None,
    bulk_hours: Annotated[str | None, typer.Option(help=f"{_BULK_HOURS_HELP}.")] = None,
    max_failed_items: _MaxFailedItems = None,
    max_failed_ratio: _MaxFailedRatio = None,
    failed_ratio_sample: _FailedRatioSample = None,
    max_total_tokens: _MaxTotalTokens = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the job has ended.")] = False,
    timeout: TimeoutOption = None,
    output: OutputOption = None,
    errors: ErrorsOption = None,
    quiet: QuietOption = False,
) -> None:
    """Upload FILE, create a job over it and print the job's id on stdout.

    --wait shows progress on stderr until the job has ended, and then where its results are.
    --output and --errors wait as well and write the two files; when one of them is -, the id goes
    to stderr.
    """
    pairs = metadata_pairs(metadata or [])
    until_s = math.inf if timeout is None else time.monotonic() + timeout
    # The API accepts more than the types of the client allow.
    parameters: dict[str, Any] = drop_none(
        endpoint=endpoint, completion_window=completion_window, metadata=pairs or None
    )
    extension = drop_none(
        priority=priority,
        sealed=None if seal else False,
        deduplicate=deduplicate or None,
        not_before=_utc_seconds(not_before),
        bulk_hours=bulk_hours,
        max_failed_items=max_failed_items,
        max_failed_ratio=max_failed_ratio,
        failed_ratio_sample=failed_ratio_sample,
        max_total_tokens=max_total_tokens,
    )
    download_files = check_targets(output, errors, quiet=quiet)
    limited = with_time_limit(client, until_s - time.monotonic())
    with uploaded_input(limited, file) as file_id:
        limited = with_time_limit(client, until_s - time.monotonic())
        batch = limited.batches.create(input_file_id=file_id, **parameters, extra_body=extension)
    typer.echo(batch.id, err=STDOUT in {output, errors})
    if not (wait or output or errors):
        return
    left_s = None if timeout is None else until_s - time.monotonic()
    ended = watch_until_ended(client, batch.id, timeout_s=left_s, quiet=quiet)
    download_files(client, ended)
    print_outcome(ended, output, errors, quiet=quiet)
    raise typer.Exit(job_exit_code(progress_of(ended)))


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
def update(  # noqa: PLR0913, PLR0917  each one is an option of the command line
    client: Client,
    job: IdArgument,
    completion_window: Annotated[
        str | None, typer.Option(help="Completion window, counted from the job's creation.")
    ] = None,
    expires_at: Annotated[
        datetime | None, typer.Option(formats=["%Y-%m-%dT%H:%M:%S"], help="Time of expiry, in UTC.")
    ] = None,
    priority: PriorityOption = None,
    not_before: Annotated[
        str | None,
        typer.Option(
            metavar="[%Y-%m-%dT%H:%M:%S|none]",
            help="No item runs before this time, in UTC; `none` removes it.",
        ),
    ] = None,
    bulk_hours: Annotated[
        str | None, typer.Option(help=f"{_BULK_HOURS_HELP}; an empty text removes them.")
    ] = None,
) -> None:
    """Change the deadline, priority or schedule of a job; print all of these that it has."""
    body = drop_none(
        completion_window=completion_window,
        priority=priority,
        expires_at=_utc_seconds(expires_at),
        not_before=_not_before_seconds(not_before),
        bulk_hours=bulk_hours,
    )
    if not body:
        raise typer.BadParameter("give at least one option", param_hint="--completion-window")
    batch = _post(client, job, "", body)
    typer.echo(_settings(batch))


@app.command()
@with_client
def append(
    client: Client, job: IdArgument, file: Annotated[str, typer.Argument(help=FILE_HELP)]
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


def _utc_seconds(at: datetime | None) -> int | None:
    """Return a time given in UTC, in seconds since the epoch."""
    return None if at is None else int(at.replace(tzinfo=UTC).timestamp())


def _not_before_seconds(text: str | None) -> int | None:
    """Return a time given in UTC, in seconds since the epoch; 0, which removes it, for `none`."""
    if text is None or text == "none":
        return None if text is None else 0
    try:
        return _utc_seconds(datetime.strptime(text, "%Y-%m-%dT%H:%M:%S"))  # noqa: DTZ007
    except ValueError:
        message = "must be a time such as 2026-07-01T22:00:00, in UTC, or none"
        raise typer.BadParameter(message, param_hint="--not-before") from None


def _settings(batch: Batch) -> str:
    """Return deadline, priority and schedule of a job."""
    own = extension_fields(batch)
    parts = [f"expires {_utc_text(batch.expires_at or 0)} priority {own['priority']}"]
    if own.get("not_before"):
        parts.append(f"not before {_utc_text(own['not_before'])}")
    if own.get("bulk_hours"):
        parts.append(f"bulk hours {own['bulk_hours']}")
    return " ".join(parts)


def _utc_text(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _post(client: Client, job: str, action: str, body: dict[str, Any] | None = None) -> Batch:
    from openai.types import Batch  # importing takes a second; operator commands do not need it

    return client.post(f"/batches/{path_segment(job)}{action}", cast_to=Batch, body=body)


def _state(batch: Batch) -> str:
    """Return the status of a job; `paused` for a paused one, which is in progress for the API."""
    return "paused" if extension_fields(batch).get("paused_at") else batch.status


def metadata_pairs(texts: list[str]) -> dict[str, str]:
    """Parse `--metadata KEY=VALUE`; the last value of a key wins. Raises typer.BadParameter."""
    pairs = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise typer.BadParameter("must be KEY=VALUE", param_hint="--metadata")
        if not _is_utf8(text):
            raise typer.BadParameter("contains bytes that are not UTF-8", param_hint="--metadata")
        pairs[name] = value
    return pairs


def _is_utf8(text: str) -> bool:
    """Whether an argument was UTF-8: Python decodes other bytes as surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
