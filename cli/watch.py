"""`millrace batch watch`: show a job until it has ended."""

import time
from typing import TYPE_CHECKING

import typer

from cli.batch_options import IdArgument, TimeoutOption
from cli.client import DEFAULT_URL, KeyOption, QuietOption, UrlOption, connect
from cli.job_display import JobDisplay
from cli.job_progress import exit_code_of, progress_of, wait_for_end
from cli.job_views import say_where
from core.clock import SystemClock

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
    """Show a job's progress on stderr until it has ended; print its last state on stdout."""
    client = connect(url, key)
    ended = watch_to_end(client, job, timeout_s=timeout, quiet=quiet)
    typer.echo(ended.status)
    if not quiet:
        say_where(ended, None, None)
    raise typer.Exit(exit_code_of(progress_of(ended)))


def watch_to_end(
    client: "openai.OpenAI", job: str, *, timeout_s: float | None, quiet: bool
) -> "Batch":
    """Show a job on stderr until it has ended; see `wait_for_end` for what is raised."""
    with JobDisplay(job, quiet=quiet) as display:
        return wait_for_end(
            lambda: client.batches.retrieve(job),
            display.show,
            timeout_s=timeout_s,
            clock=SystemClock(),
            sleep=time.sleep,
        )
