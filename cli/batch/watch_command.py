"""`millrace batch watch`: show a job until it has ended."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from cli.api_client import DEFAULT_URL, KeyOption, QuietOption, UrlOption, connect
from cli.batch.batch_options import IdArgument, TimeoutOption
from cli.batch.job_display import JobDisplay
from cli.batch.job_progress import job_exit_code, progress_of, wait_until_ended
from cli.batch.job_views import print_outcome, print_validation_errors

if TYPE_CHECKING:
    import openai
    from openai.types import Batch


def watch(
    job: IdArgument,
    timeout: TimeoutOption = None,
    quiet: QuietOption = False,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = "",
) -> None:
    """Show a job's progress on stderr until it has ended; print its final state on stdout."""
    client = connect(url, key)
    ended = watch_until_ended(client, job, timeout_s=timeout, quiet=quiet)
    typer.echo(ended.status)
    if quiet:
        print_validation_errors(ended)
    else:
        print_outcome(ended, None, None)
    raise typer.Exit(job_exit_code(progress_of(ended)))


def watch_until_ended(
    client: "openai.OpenAI", job: str, *, timeout_s: float | None, quiet: bool
) -> "Batch":
    """Show a job on stderr until it has ended. Raises the errors of `wait_until_ended`."""
    with JobDisplay(job, quiet=quiet) as display:
        return wait_until_ended(poll_job(client, job), display.show, timeout_s=timeout_s)


def poll_job(client: "openai.OpenAI", job: str) -> Callable[[float], "Batch"]:
    """Return a function that retrieves a job within a timeout, for `wait_until_ended`."""

    def poll(timeout_s: float) -> "Batch":
        # No retries of the client: `wait_until_ended` retries, and knows for how long.
        return client.with_options(timeout=timeout_s, max_retries=0).batches.retrieve(job)

    return poll
