"""`millrace batch submit`: upload a file, create a job, optionally wait for it."""

import math
import time
from typing import Annotated, Any, TypeAlias

import typer

from cli.api_client import Client, QuietOption, drop_none, with_client, with_time_limit
from cli.batch.batch_options import ErrorsOption, OutputOption, PriorityOption, TimeoutOption
from cli.batch.input_upload import FILE_HELP, uploaded_input
from cli.batch.job_display import print_outcome, watch_until_ended
from cli.batch.job_downloads import STDOUT, check_targets
from cli.batch.job_progress import job_exit_code, progress_of

_MaxFailedItems: TypeAlias = Annotated[
    int | None, typer.Option(min=0, help="Stop the job when more items than this fail.")
]
_MaxFailedRatio: TypeAlias = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="Stop the job when a larger share of executed items fails."),
]
_FailedRatioSample: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, help="Executed items from which the ratio counts; default 100."),
]
_MaxTotalTokens: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="Stop the job when it has used this many tokens.")
]


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
