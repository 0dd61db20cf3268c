"""`millrace batch submit`: upload a file, create a job over it, and stay if asked to."""

import math
import time
from typing import Annotated, Any

import typer

from cli.batch.batch_options import ErrorsOption, OutputOption, TimeoutOption
from cli.batch.input_upload import FILE_HELP, uploaded_input
from cli.batch.job_progress import job_exit_code, progress_of
from cli.batch.job_views import print_outcome, print_validation_errors
from cli.batch.output_targets import STDOUT, open_targets
from cli.batch.submit_options import (
    DeduplicateOption,
    FailedRatioSampleOption,
    MaxFailedItemsOption,
    MaxFailedRatioOption,
    MaxTotalTokensOption,
    PriorityOption,
    SealOption,
    given,
)
from cli.batch.watch_command import watch_until_ended
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
        failed_ratio_sample=failed_ratio_sample,
        max_total_tokens=max_total_tokens,
    )
    with open_targets(output, errors, quiet=quiet) as save:
        with uploaded_input(with_time_limit(client, until_s - time.monotonic()), file) as file_id:
            hurried = with_time_limit(client, until_s - time.monotonic())
            batch = hurried.batches.create(input_file_id=file_id, **asked)
        typer.echo(batch.id, err=STDOUT in {output, errors})
        if not (wait or output or errors):
            return
        left_s = None if timeout is None else until_s - time.monotonic()
        ended = watch_until_ended(client, batch.id, timeout_s=left_s, quiet=quiet)
        save(client, ended)
    if quiet:
        print_validation_errors(ended)
    else:
        print_outcome(ended, output, errors)
    raise typer.Exit(job_exit_code(progress_of(ended)))


def metadata_pairs(texts: list[str]) -> dict[str, str]:
    """Return what `--metadata KEY=VALUE` said; a later one wins. Raises typer.BadParameter."""
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
    """Whether an argument was UTF-8: other bytes come as surrogates, which nothing can send."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
