"""`millrace batch submit`: uploads a file, creates a job and optionally waits for its end."""

import math
import time
from typing import Annotated, Any

import typer

from cli.batch.batch_options import (
    DeduplicateOption,
    ErrorsOption,
    FailedRatioSampleOption,
    MaxFailedItemsOption,
    MaxFailedRatioOption,
    MaxTotalTokensOption,
    OutputOption,
    PriorityOption,
    SealOption,
    TimeoutOption,
    given_options,
)
from cli.batch.input_upload import FILE_HELP, uploaded_file
from cli.batch.job_progress import exit_code_of, progress_of
from cli.batch.job_views import print_outcome, print_validation_errors
from cli.batch.result_files import STDOUT, open_targets
from cli.batch.watch import watch_to_end
from cli.client import DEFAULT_URL, KeyOption, QuietOption, UrlOption, connect, with_time_limit


def submit(  # noqa: PLR0913, PLR0917  each one is an option of the command line
    file: Annotated[str, typer.Argument(help=FILE_HELP)],
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
    failed_ratio_sample: FailedRatioSampleOption = None,
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
    --output and --errors wait as well and write the two files; with - for one of them, the id is
    on stderr.
    """
    pairs = metadata_pairs(metadata or [])
    client = connect(url, key)
    until_s = math.inf if timeout is None else time.monotonic() + timeout
    # Untyped: the client's types lack values that the server accepts.
    request: dict[str, Any] = {"endpoint": endpoint, "completion_window": completion_window}
    if pairs:
        request["metadata"] = pairs
    request["extra_body"] = given_options(
        priority=priority,
        sealed=None if seal else False,
        deduplicate=deduplicate or None,
        max_failed_items=max_failed_items,
        max_failed_ratio=max_failed_ratio,
        failed_ratio_sample=failed_ratio_sample,
        max_total_tokens=max_total_tokens,
    )
    with open_targets(output, errors, quiet=quiet) as save:
        with uploaded_file(with_time_limit(client, until_s - time.monotonic()), file) as file_id:
            limited = with_time_limit(client, until_s - time.monotonic())
            batch = limited.batches.create(input_file_id=file_id, **request)
        typer.echo(batch.id, err=STDOUT in {output, errors})
        if not (wait or output or errors):
            return
        left_s = None if timeout is None else until_s - time.monotonic()
        ended = watch_to_end(client, batch.id, timeout_s=left_s, quiet=quiet)
        save(client, ended)
    if quiet:
        print_validation_errors(ended)
    else:
        print_outcome(ended, output, errors)
    raise typer.Exit(exit_code_of(progress_of(ended)))


def metadata_pairs(texts: list[str]) -> dict[str, str]:
    """Parse `--metadata KEY=VALUE`; a later one overrides. Raises typer.BadParameter."""
    pairs = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise typer.BadParameter("must be KEY=VALUE", param_hint="--metadata")
        if not _is_utf8(text):
            raise typer.BadParameter("holds bytes that are not UTF-8", param_hint="--metadata")
        pairs[name] = value
    return pairs


def _is_utf8(text: str) -> bool:
    """Whether an argument was UTF-8: Python decodes other bytes as surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
